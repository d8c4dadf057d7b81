#include "factors.hpp"

#include <algorithm>

#include "error.hpp"

namespace surge {
namespace {

constexpr int64_t kMostValues = int64_t(1) << 27;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int32_t count_bits(uint32_t x) {
    x = x - (x >> 1 & 0x55555555u);
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0fu;
    return int32_t(x * 0x01010101u >> 24);
}

// Rows and columns of 32 x 32 bits change places, in five steps of half the size each.
void transpose_bits(uint32_t* block) {
    uint32_t mask = 0x0000ffffu;
    for (int half = 16; half > 0; half /= 2, mask ^= mask << half)
        for (int i = 0; i < 32; i = (i + half + 1) & ~half) {
            uint32_t moved = (block[i] >> half ^ block[i + half]) & mask;
            block[i + half] ^= moved;
            block[i] ^= moved << half;
        }
}

// Where a word of a filter lies.
int64_t place(int64_t filter, int64_t word, int64_t words) {
    return (filter / kLanes * words + word) * kLanes + filter % kLanes;
}

}  // namespace

int64_t factor_filters(const Node& node, const Shape& second) {
    return ceil_div(node.transposed ? second.w : second.c / node.heads, kLanes) * kLanes;
}

int64_t factor_words(const Node& node, const Shape& second) {
    return ceil_div(node.transposed ? second.c / node.heads : second.w, kWordBits);
}

size_t factor_bytes(const Node& node, const Shape& second) {
    // All factors are below 2^28, their product below 2^63: a head has at least one channel.
    size_t filters = size_t(node.heads) * size_t(factor_filters(node, second));
    return filters * size_t(factor_words(node, second) + 1) * 4;
}

void arrange_factor(const Node& node, const Shape& second, const uint32_t* bits,
                    int64_t pixel_words, uint32_t* packed) {
    int64_t filters = factor_filters(node, second), words = factor_words(node, second);
    int64_t size = second.c / node.heads, head_words = ceil_div(size, kWordBits);
    int64_t per_head = filters * words;
    std::fill_n(packed, node.heads * filters * (words + 1), 0u);
    int32_t* base = reinterpret_cast<int32_t*>(packed + node.heads * per_head);
    for (int64_t h = 0; h < node.heads; ++h) {
        uint32_t* target = packed + h * per_head;
        const uint32_t* source = bits + h * head_words;
        if (node.transposed) {
            for (int64_t t = 0; t < second.w; ++t)
                for (int64_t w = 0; w < words; ++w)
                    target[place(t, w, words)] = source[t * pixel_words + w];
        } else {
            for (int64_t first = 0; first < second.w; first += kWordBits)
                for (int64_t w = 0; w < head_words; ++w) {
                    uint32_t block[kWordBits] = {};
                    int64_t tokens = std::min(kWordBits, second.w - first);
                    for (int64_t t = 0; t < tokens; ++t)
                        block[t] = source[(first + t) * pixel_words + w];
                    transpose_bits(block);
                    int64_t channels = std::min(kWordBits, size - w * kWordBits);
                    for (int64_t c = 0; c < channels; ++c)
                        target[place(w * kWordBits + c, first / kWordBits, words)] = block[c];
                }
        }
        // Signs: depth - 2 * differences. 0 or 1: ones of the filter - differences.
        int32_t depth = int32_t(node.transposed ? size : second.w);
        for (int64_t f = 0; f < filters; ++f) {
            int32_t ones = 0;
            for (int64_t w = 0; node.unit && w < words; ++w)
                ones += count_bits(target[place(f, w, words)]);
            base[h * filters + f] = node.unit ? ones : depth;
        }
    }
}

const int32_t* factor_base(const Node& node, const Shape& second, const uint32_t* packed,
                           int64_t head) {
    int64_t filters = factor_filters(node, second), words = factor_words(node, second);
    return reinterpret_cast<const int32_t*>(packed + node.heads * filters * words) +
           head * filters;
}

int64_t factor_depth(const Node& node, const Shape& second) {
    return node.transposed ? second.c / node.heads : second.w;
}

size_t real_factor_bytes(const Node& node, const Shape& second) {
    size_t filters = size_t(node.heads) * size_t(factor_filters(node, second));
    return filters * size_t(factor_depth(node, second)) * 4;
}

void arrange_real_factor(const Node& node, const Shape& second, const float* values,
                         float* packed) {
    int64_t filters = factor_filters(node, second), depth = factor_depth(node, second);
    int64_t size = second.c / node.heads;
    std::fill_n(packed, node.heads * filters * depth, 0.0f);
    for (int64_t h = 0; h < node.heads; ++h)
        for (int64_t t = 0; t < second.w; ++t)
            for (int64_t c = 0; c < size; ++c) {
                int64_t f = node.transposed ? t : c, k = node.transposed ? c : t;
                packed[h * filters * depth + place(f, k, depth)] =
                    values[t * second.c + h * size + c];
            }
}

AlignedMemory make_table(const Container& file, const Node& node, const Shape& in,
                         const Shape& out) {
    const Tensor& source = file.tensor(node.weight);
    if (node.weight_bits) {
        AlignedMemory bits(source.bytes);
        std::copy_n(source.data, source.bytes, bits.as<uint8_t>());
        return bits;
    }
    bool added = node.op == Op::AddRows;
    int64_t first = added ? node.index * out.c : 0;
    int64_t count = added ? in.w * out.c : source.elements;
    if (count > kMostValues) throw Error("\"" + node.name + "\" is too large to run");
    std::vector<float> values = file.floats(node.weight);
    AlignedMemory table(size_t(count) * 4);
    float* target = table.as<float>();
    for (int64_t i = 0; i < count; ++i) {
        float value = values[size_t(first + i)];
        if (!node.row_scale.empty()) value *= node.row_scale[size_t((first + i) / out.c)];
        target[i] = value;
    }
    return table;
}

void bits_row(const uint8_t* table, int64_t row, float scale, int64_t channels, float* out) {
    const float values[2] = {-scale, scale};
    int64_t bit = row * channels, c = 0;
    for (; c < channels && (bit & 7); ++c, ++bit) out[c] = values[table[bit >> 3] >> (bit & 7) & 1];
    for (; c + 8 <= channels; c += 8, bit += 8) {
        uint32_t byte = table[bit >> 3];
        for (int i = 0; i < 8; ++i) out[c + i] = values[byte >> i & 1];
    }
    for (; c < channels; ++c, ++bit) out[c] = values[table[bit >> 3] >> (bit & 7) & 1];
}

}  // namespace surge
