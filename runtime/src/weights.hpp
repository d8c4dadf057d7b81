// Weights in the order the kernels read them. The file has them without gaps; here filters stand
// side by side in blocks, and channels of bits are padded to whole words.
#pragma once

#include <cstdint>
#include <vector>

#include "container.hpp"
#include "graph.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace surge {

// Which taps of a window lie inside the image, along one axis. Output positions with the same
// taps share a class; there are few, whatever the size of the image.
struct BorderClasses {
    std::vector<int32_t> of_position;
    std::vector<std::pair<int64_t, int64_t>> taps;  // first and one past the last, by class
};

BorderClasses border_classes(const Window& window, int axis, int64_t size, int64_t positions);

struct BinaryFilters {
    int64_t words = 0;         // of a filter: taps * words of a group's channels
    int64_t blocks = 0;        // of a group, or, depthwise, of all channels
    AlignedMemory weights;     // [groups][blocks][words][kLanes]
    BorderClasses rows, columns;
    // dot = base - 2 * count. Beyond the border the input bits are 0: what they add to the count is
    // known, and base takes it back, so zero padding is exact.
    AlignedMemory base;        // int32 [row class][column class][groups][blocks * kLanes]
    int64_t base_pitch = 0;
    // Where only signs are needed: 1 where base - count is from 0 to this. Else empty.
    AlignedMemory span;        // uint32, as base

    const uint32_t* group(int64_t g) const {
        return weights.as<uint32_t>() + g * blocks * words * kLanes;
    }
};

// One plane of weights of few bits.
struct PlaneFilters {
    BinaryFilters bits;
    std::vector<int32_t> ones;  // bits of every filter that are 1: [groups][blocks * kLanes]
};

struct FloatFilters {
    int64_t depth = 0;     // taps * channels of a group
    int64_t blocks = 0;
    Weights kind = Weights::F32;
    AlignedMemory weights;  // [groups][blocks][depth][kLanes]

    const void* group(int64_t g) const {
        int64_t width = kind == Weights::F32 ? 4 : kind == Weights::F16 ? 2 : 1;
        return weights.data() + g * blocks * depth * kLanes * width;
    }
};

struct ByteFilters {
    int64_t quads = 0;      // of a filter
    int64_t blocks = 0;
    AlignedMemory weights;  // [blocks][quads][kLanes][4]
};

// Whether every filter reads one channel, its own.
inline bool is_depthwise(const Node& node, const Shape& in, const Shape& out) {
    return node.groups > 1 && node.groups == in.c && node.groups == out.c;
}

BinaryFilters make_binary(const Container& file, const Node& node, const Shape& in,
                          const Shape& out);
PlaneFilters make_plane(const Container& file, const Node& node, const Shape& in, const Shape& out,
                        int64_t plane);
FloatFilters make_float(const Container& file, const Node& node, const Shape& in,
                        const Shape& out);
ByteFilters make_bytes(const Container& file, const Node& node, const Shape& in, const Shape& out);

}  // namespace surge
