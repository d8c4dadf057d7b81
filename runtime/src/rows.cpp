#include "rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace surge {
namespace {

const float* pixel(const RowSource& in, int64_t y, int64_t x) {
    return in.data + (y * in.shape.w + x) * in.shape.c;
}

typedef float Four __attribute__((vector_size(16)));

// So many values, the first of `in` at place `first` of them, which may lie before; zeros around.
void pad_values(const float* in, int64_t size, int64_t first, int64_t count, float* out) {
    int64_t start = std::max<int64_t>(first, 0), end = std::min(first + size, count);
    std::fill(out, out + start, 0.0f);
    std::copy(in + start - first, in + end - first, out + start);
    std::fill(out + end, out + count, 0.0f);
}

// A block of 4 x 4.
void transpose_four(const float* in, int64_t in_pitch, float* out, int64_t out_pitch) {
    Four from[4], to[4];
    for (int i = 0; i < 4; ++i) std::memcpy(&from[i], in + i * in_pitch, 16);
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
    Four a = __builtin_shufflevector(from[0], from[1], 0, 4, 1, 5);
    Four b = __builtin_shufflevector(from[2], from[3], 0, 4, 1, 5);
    Four c = __builtin_shufflevector(from[0], from[1], 2, 6, 3, 7);
    Four d = __builtin_shufflevector(from[2], from[3], 2, 6, 3, 7);
    to[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    to[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    to[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    to[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
#else
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) to[i][j] = from[j][i];
#endif
    for (int i = 0; i < 4; ++i) std::memcpy(out + i * out_pitch, &to[i], 16);
}

// out[column][row] = in[row][column], block by block: every line of the cache is filled at once.
void transpose(const float* in, int64_t in_pitch, int64_t rows, int64_t columns, float* out,
               int64_t out_pitch) {
    constexpr int64_t kBlock = 16;
    for (int64_t top = 0; top < rows; top += kBlock)
        for (int64_t left = 0; left < columns; left += 4) {
            int64_t r = top, end = std::min(top + kBlock, rows);
            for (; left + 4 <= columns && r + 4 <= end; r += 4)
                transpose_four(in + r * in_pitch + left, in_pitch, out + left * out_pitch + r,
                               out_pitch);
            for (; r < end; ++r)
                for (int64_t c = left; c < std::min(left + 4, columns); ++c)
                    out[c * out_pitch + r] = in[r * in_pitch + c];
        }
}

}  // namespace

void input_row(const float* input, const Shape& shape, int64_t y, float* out) {
    const float* plane = input + y * shape.w;
    if (shape.c == 3) {
        const float *a = plane, *b = a + shape.h * shape.w, *c = b + shape.h * shape.w;
        for (int64_t x = 0; x < shape.w; ++x) {
            out[3 * x] = a[x];
            out[3 * x + 1] = b[x];
            out[3 * x + 2] = c[x];
        }
        return;
    }
    transpose(plane, shape.h * shape.w, shape.c, shape.w, out, shape.c);
}

void pad_channels_row(const Node& node, const RowSource& in, int64_t y, int64_t channels,
                      float* out) {
    for (int64_t x = 0; x < in.shape.w; ++x, out += channels)
        pad_values(pixel(in, y, x), in.shape.c, node.before, channels, out);
}

void pad_row(const Node& node, const RowSource& in, int64_t y, int64_t columns, float* out) {
    int64_t row = y - node.top, channels = in.shape.c;
    if (row < 0 || row >= in.shape.h)
        std::fill_n(out, columns * channels, 0.0f);
    else
        pad_values(pixel(in, row, 0), in.shape.w * channels, node.left * channels,
                   columns * channels, out);
}

void subsample_row(const Node& node, const RowSource& in, int64_t y, int64_t columns, float* out) {
    for (int64_t x = 0; x < columns; ++x, out += in.shape.c)
        std::copy_n(pixel(in, y * node.window.stride[0], x * node.window.stride[1]), in.shape.c,
                    out);
}

void flatten_all(const RowSource& in, float* out) {
    int64_t pixels = in.shape.h * in.shape.w;
    transpose(in.data, in.shape.c, pixels, in.shape.c, out, pixels);
}

void shuffle_row(const RowSource& in, int64_t y, int64_t groups, float* out) {
    int64_t size = in.shape.c / groups;
    for (int64_t x = 0; x < in.shape.w; ++x) {
        const float* values = pixel(in, y, x);
        for (int64_t c = 0; c < size; ++c)
            for (int64_t g = 0; g < groups; ++g) *out++ = values[g * size + c];
    }
}

void concat_row(const RowSource& in, int64_t y, int64_t first, int64_t channels, float* out) {
    for (int64_t x = 0; x < in.shape.w; ++x)
        std::copy_n(pixel(in, y, x), in.shape.c, out + x * channels + first);
}

namespace {

float ternary(float x, float threshold) {
    return x >= threshold ? 1.0f : x <= -threshold ? -1.0f : 0.0f;
}

template <typename Combine>
void combine_row(const RowSource& a, const RowSource& b, int64_t y, float* out, Combine combine) {
    bool single = b.shape.h == 1 && b.shape.w == 1;
    for (int64_t x = 0; x < a.shape.w; ++x) {
        const float *left = pixel(a, y, x), *right = single ? b.data : pixel(b, y, x);
        for (int64_t c = 0; c < a.shape.c; ++c)
            *out++ = combine(left[c], right[b.shape.c == 1 ? 0 : c]);
    }
}

}  // namespace

void pair_row(Op op, const RowSource& a, const RowSource& b, int64_t y, float* out) {
    if (op == Op::Multiply)
        combine_row(a, b, y, out, [](float l, float r) { return l * r; });
    else if (op == Op::Add)
        combine_row(a, b, y, out, [](float l, float r) { return l + r; });
    else if (op == Op::Subtract)
        combine_row(a, b, y, out, [](float l, float r) { return l - r; });
    else if (op == Op::Divide)
        combine_row(a, b, y, out, [](float l, float r) { return l / r; });
    else
        combine_row(a, b, y, out, ternary);
}

void square_root_row(const RowSource& in, int64_t y, float* out) {
    const float* row = pixel(in, y, 0);
    for (int64_t i = 0; i < in.shape.w * in.shape.c; ++i) out[i] = std::sqrt(row[i]);
}

void round_row(const Node& node, const RowSource& in, int64_t y, float* out) {
    const float* row = pixel(in, y, 0);
    float levels = float(node.levels);
    // Adding and taking away 1.5 * 2^23 rounds numbers below 2^22, the even one of two.
    constexpr float kShift = 12582912.0f, kLimit = 4194304.0f;
    for (int64_t i = 0; i < in.shape.w * in.shape.c; ++i) {
        float t = row[i] * levels;
        float rounded = t + kShift;
        rounded = rounded - kShift;
        out[i] = std::fabs(t) < kLimit ? rounded : std::nearbyint(t);
    }
}

float sample_mean(const RowSource& in) {
    double sum = 0;
    int64_t count = in.shape.elements();
    for (int64_t i = 0; i < count; ++i) sum += double(in.data[i]);
    return float(sum / double(count));
}

float sample_variance(const RowSource& in, int64_t correction) {
    double sum = 0, squares = 0;
    int64_t count = in.shape.elements();
    for (int64_t i = 0; i < count; ++i) sum += double(in.data[i]);
    double mean = sum / double(count);
    for (int64_t i = 0; i < count; ++i) {
        double away = double(in.data[i]) - mean;
        squares += away * away;
    }
    return float(squares / double(count - correction));
}

void absolute_row(const RowSource& in, int64_t y, float* out) {
    const float* row = pixel(in, y, 0);
    for (int64_t i = 0; i < in.shape.w * in.shape.c; ++i) out[i] = std::fabs(row[i]);
}

void channel_mean_row(const RowSource& in, int64_t y, float* out) {
    for (int64_t x = 0; x < in.shape.w; ++x) {
        const float* values = pixel(in, y, x);
        float sum = 0.0f;
        for (int64_t c = 0; c < in.shape.c; ++c) sum += values[c];
        out[x] = sum / float(in.shape.c);
    }
}

}  // namespace surge
