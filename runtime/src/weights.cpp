#include "weights.hpp"

#include <algorithm>

#include "error.hpp"

namespace surge {
namespace {

constexpr int64_t kMostWords = int64_t(1) << 27;  // 1 GiB of repacked weights per layer

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// a * b, or an error if it is beyond any real layer.
int64_t bounded(int64_t a, int64_t b, const Node& node) {
    if (b != 0 && a > kMostWords / b) throw Error("\"" + node.name + "\" is too large to run");
    return a * b;
}

// Bits of each tap of each filter that are 1, for the border correction.
std::vector<int32_t> ones_per_tap(const Tensor& weight, int64_t channels, int64_t taps,
                                  int64_t depth) {
    std::vector<int32_t> ones(size_t(channels * taps));
    int64_t bit = 0;
    for (size_t i = 0; i < ones.size(); ++i)
        for (int64_t c = 0; c < depth; ++c, ++bit) ones[i] += weight.data[bit / 8] >> bit % 8 & 1;
    return ones;
}

void fill_base(BinaryFilters& filters, const Node& node, const std::vector<int32_t>& ones,
               int64_t depth, int64_t channels, int64_t per_group) {
    int64_t taps = node.window.taps(), columns = node.window.kernel[1];
    int64_t padded = filters.blocks * kLanes;
    int32_t* base = filters.base.as<int32_t>();
    for (auto row : filters.rows.taps)
        for (auto column : filters.columns.taps) {
            int64_t inside = (row.second - row.first) * (column.second - column.first);
            for (int64_t f = 0; f < channels; ++f) {
                int64_t correction = 0;
                for (int64_t t = 0; t < taps; ++t) {
                    int64_t y = t / columns, x = t % columns;
                    bool valid = y >= row.first && y < row.second && x >= column.first &&
                                 x < column.second;
                    if (!valid) correction += ones[size_t(f * taps + t)];
                }
                base[f / per_group * padded + f % per_group] =
                    int32_t(depth * inside + 2 * correction);
            }
            base += filters.base_pitch;
        }
}

}  // namespace

BorderClasses border_classes(const Window& window, int axis, int64_t size, int64_t positions) {
    BorderClasses classes;
    for (int64_t at = 0; at < positions; ++at) {
        int64_t start = at * window.stride[axis] - window.padding[axis];
        int64_t step = window.dilation[axis], count = window.kernel[axis];
        int64_t first = std::min(count, start < 0 ? ceil_div(-start, step) : 0);
        int64_t end = start >= size ? 0 : std::min(count, ceil_div(size - start, step));
        std::pair<int64_t, int64_t> taps(first, std::max(first, end));
        auto known = std::find(classes.taps.begin(), classes.taps.end(), taps);
        classes.of_position.push_back(int32_t(known - classes.taps.begin()));
        if (known == classes.taps.end()) classes.taps.push_back(taps);
    }
    return classes;
}

namespace {

// Bits from `bit` on, so many filters side by side.
BinaryFilters interleave_bits(const Tensor& source, const Node& node, const Shape& in,
                              const Shape& out, int64_t bit, int64_t per_group) {
    int64_t taps = node.window.taps(), depth = in.c / node.groups;
    int64_t group_words = ceil_div(depth, kWordBits);
    BinaryFilters filters;
    filters.words = bounded(taps, group_words, node);
    filters.blocks = ceil_div(per_group, kLanes);
    int64_t padded = filters.blocks * kLanes;
    bounded(depth, taps * 8, node);  // so that every count fits into 32 bits
    int64_t total = bounded(bounded(out.c / per_group, padded, node), filters.words, node);
    filters.weights = AlignedMemory(size_t(total) * 4);
    uint32_t* words = filters.weights.as<uint32_t>();
    for (int64_t f = 0; f < out.c; ++f) {
        int64_t group = f / per_group, lane = f % per_group;
        uint32_t* filter = words + group * padded * filters.words +
                           lane / kLanes * filters.words * kLanes + lane % kLanes;
        for (int64_t t = 0; t < taps; ++t)
            for (int64_t c = 0; c < depth; ++c, ++bit) {
                uint32_t value = source.data[bit / 8] >> bit % 8 & 1u;
                filter[(t * group_words + c / kWordBits) * kLanes] |= value << c % kWordBits;
            }
    }
    return filters;
}

}  // namespace

BinaryFilters make_binary(const Container& file, const Node& node, const Shape& in,
                          const Shape& out) {
    const Tensor& source = file.tensor(node.weight);
    int64_t taps = node.window.taps(), depth = in.c / node.groups;
    int64_t per_group = is_depthwise(node, in, out) ? out.c : out.c / node.groups;
    BinaryFilters filters = interleave_bits(source, node, in, out, 0, per_group);
    filters.rows = border_classes(node.window, 0, in.h, out.h);
    filters.columns = border_classes(node.window, 1, in.w, out.w);
    filters.base_pitch = out.c / per_group * filters.blocks * kLanes;
    int64_t classes = int64_t(filters.rows.taps.size() * filters.columns.taps.size());
    bounded(bounded(classes, filters.base_pitch, node), taps, node);
    filters.base = AlignedMemory(size_t(classes * filters.base_pitch) * 4);
    fill_base(filters, node, ones_per_tap(source, out.c, taps, depth), depth, out.c, per_group);
    return filters;
}

PlaneFilters make_plane(const Container& file, const Node& node, const Shape& in, const Shape& out,
                        int64_t plane) {
    const Tensor& source = file.tensor(node.weight);
    int64_t depth = node.window.taps() * (in.c / node.groups), per_group = out.c / node.groups;
    int64_t bit = plane * out.c * depth;
    PlaneFilters filters;
    filters.bits = interleave_bits(source, node, in, out, bit, per_group);
    int64_t padded = filters.bits.blocks * kLanes;
    filters.ones.assign(size_t(node.groups * padded), 0);
    for (int64_t f = 0; f < out.c; ++f)
        for (int64_t k = 0; k < depth; ++k, ++bit)
            filters.ones[size_t(f / per_group * padded + f % per_group)] +=
                source.data[bit / 8] >> bit % 8 & 1;
    return filters;
}

namespace {

// Weights of few bits as odd numbers: the sum over planes j of 2^j times +-1, plus the offset.
std::vector<float> from_planes(const Tensor& source, const Node& node, int64_t channels,
                               int64_t depth) {
    int64_t count = channels * depth;
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        int32_t value = 0;
        for (int64_t j = 0; j < node.weight_bits; ++j) {
            int64_t bit = j * count + i;
            value += (source.data[bit / 8] >> bit % 8 & 1 ? 1 : -1) * (1 << j);
        }
        float offset = node.offset.empty() ? 0.0f : node.offset[size_t(i / depth)];
        values[size_t(i)] = float(value) + offset;
    }
    return values;
}

// Filters side by side: value(filter, k) goes to its lane.
template <typename T, typename Value>
void interleave(FloatFilters& filters, int64_t channels, int64_t per_group, Value value) {
    int64_t padded = filters.blocks * kLanes;
    filters.weights =
        AlignedMemory(size_t(channels / per_group * padded * filters.depth) * sizeof(T));
    T* weights = filters.weights.as<T>();
    for (int64_t f = 0; f < channels; ++f) {
        int64_t group = f / per_group, lane = f % per_group;
        T* filter = weights + group * padded * filters.depth +
                    lane / kLanes * filters.depth * kLanes + lane % kLanes;
        for (int64_t k = 0; k < filters.depth; ++k)
            filter[k * kLanes] = value(f * filters.depth + k);
    }
}

}  // namespace

FloatFilters make_float(const Container& file, const Node& node, const Shape& in,
                        const Shape& out) {
    const Tensor& source = file.tensor(node.weight);
    bool depthwise = is_depthwise(node, in, out);
    int64_t per_group = depthwise ? out.c : out.c / node.groups;
    FloatFilters filters;
    filters.depth = node.window.taps() * (in.c / node.groups);
    filters.blocks = ceil_div(per_group, kLanes);
    bounded(bounded(out.c / per_group, filters.blocks * kLanes, node), filters.depth, node);
    // Weights that are read once or a few times per run stay narrow: reading them is the work.
    bool narrow = out.h * out.w <= 4 && !depthwise;
    if (narrow && source.dtype == Dtype::F16) {
        filters.kind = Weights::F16;
        interleave<uint16_t>(filters, out.c, per_group, [&](int64_t i) {
            return uint16_t(source.data[2 * i] | source.data[2 * i + 1] << 8);
        });
    } else if (narrow && source.dtype == Dtype::I8) {
        filters.kind = Weights::I8;
        interleave<int8_t>(filters, out.c, per_group,
                           [&](int64_t i) { return int8_t(source.data[i]); });
    } else {
        std::vector<float> values = source.dtype == Dtype::U8
                                        ? from_planes(source, node, out.c, filters.depth)
                                        : file.floats(node.weight);
        interleave<float>(filters, out.c, per_group,
                          [&](int64_t i) { return values[size_t(i)]; });
    }
    return filters;
}

ByteFilters make_bytes(const Container& file, const Node& node, const Shape& in,
                       const Shape& out) {
    const Tensor& source = file.tensor(node.weight);
    int64_t taps = node.window.taps(), quads = ceil_div(in.c, 4);
    ByteFilters filters;
    filters.quads = bounded(taps, quads, node);
    filters.blocks = ceil_div(out.c, kLanes);
    int64_t total = bounded(bounded(filters.blocks * kLanes, filters.quads, node), 4, node);
    bounded(in.c, taps * 64, node);  // so that every sum fits into 32 bits
    filters.weights = AlignedMemory(size_t(total));
    int8_t* weights = filters.weights.as<int8_t>();
    for (int64_t f = 0; f < out.c; ++f) {
        int8_t* filter =
            weights + (f / kLanes * filters.quads * kLanes + f % kLanes) * 4;
        for (int64_t t = 0; t < taps; ++t)
            for (int64_t c = 0; c < in.c; ++c)
                filter[(t * quads + c / 4) * kLanes * 4 + c % 4] =
                    int8_t(source.data[(f * taps + t) * in.c + c]);
    }
    return filters;
}

}  // namespace surge
