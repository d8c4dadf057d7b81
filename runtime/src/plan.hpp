// How a graph is run: one step per operator, and where every value lives in one block of memory.
#pragma once

#include <cstdint>
#include <vector>

#include "graph.hpp"
#include "weights.hpp"

namespace surge {

// A piece of the arena; two pieces may share bytes if they are never needed at the same time.
struct Buffer {
    size_t bytes = 0;
    size_t offset = 0;
    int first = 0, last = 0;  // steps between which it is needed
};

// What the bits of a value say: its sign; the digits of a whole number, lowest plane first; where a
// ternary value is 1 and where it is -1; where it is above a limit.
enum class BitRule { Sign, Digits, Ternary, Above };

// A value as bits, with a border of zeros, as a binary convolution reads them. The step that makes
// the value writes them, row by row, while the row is still in the cache.
struct SignSink {
    BitRule rule = BitRule::Sign;
    int64_t planes = 1;  // one after the other
    int value = 0;
    int buffer = 0;
    int64_t padding[2] = {0, 0};
    int64_t groups = 1, channels = 0, words = 0;
    int64_t rows = 0, columns = 0;  // with the border
    std::vector<float> shift;
    float limit = 0;

    int64_t pixel_words() const { return groups * words; }
    int64_t row_words() const { return columns * pixel_words(); }
    int64_t plane_words() const { return rows * row_words(); }
    // What a bit of a plane counts.
    int32_t weight(int64_t plane) const {
        return rule == BitRule::Ternary && plane == 1 ? -1 : int32_t(1) << plane;
    }
    // Where a pixel's bits are.
    int64_t place(int64_t y, int64_t x) const {
        return (y + padding[0]) * row_words() + (x + padding[1]) * pixel_words();
    }
};

struct Step {
    int node = -1;    // -1: bring the input into the engine's order
    int output = 0;   // value
    int padded = -1;  // buffer of the input with a border around it (real convolutions)
    int signs = -1;   // sink that a binary convolution, or one by planes, reads
    int second = -1;  // sink of the second factor of a product of two values
    int packed = -1;  // buffer of that factor in the order of weights
    bool skipped = false;  // whether its value is only needed as bits that others write
    bool depthwise = false;  // whether a convolution has one channel per filter, its own
    bool planar = false;  // whether a convolution of few bits is computed plane by plane
    std::vector<int> sinks;        // that this step writes
    int fused = -1;                // the one of them that the kernel writes by itself
    std::vector<int32_t> offsets;  // of the words, runs or quads of a filter
    int64_t length = 0;            // of a run of a real filter
    int64_t chunk = 0;             // pixels per kernel call
    int64_t joined = 1;            // rows that are computed as one
    int pulls = -1;                // step whose rows a maximum pool asks for, one by one
    bool pulled = false;           // whether this step only runs when it is asked
    BinaryFilters binary;
    std::vector<PlaneFilters> planes;
    FloatFilters real;
    ByteFilters bytes;
    AlignedMemory table;  // rows to look up, or to add
    int64_t scratch_values = 0;  // of a pixel, beside the kernels' results
};

struct Plan {
    Graph graph;
    std::vector<Step> steps;
    std::vector<Buffer> buffers;
    std::vector<SignSink> sinks;
    std::vector<int> value_buffer;  // -1: the value is only needed as bits, or in passing
    std::vector<int> direct;        // convolutions whose padded input is written by the first step
    size_t arena_bytes = 0;
    size_t scratch_bytes = 0;  // of one thread: kernel results, one row, rows of a pool
    size_t row_offset = 0;     // of that row in the scratch memory
    size_t pool_offset = 0;    // of the pool's rows
    size_t pool_rows = 0;      // of the highest window

    const Shape& shape(int value) const { return graph.values[size_t(value)]; }
    const Node& node(const Step& step) const { return graph.nodes[size_t(step.node)]; }
};

Plan make_plan(const Container& file);
// Read and arrange what a step needs; all buffers must have been chosen before.
void prepare(const Container& file, Plan& plan, Step& step);

}  // namespace surge
