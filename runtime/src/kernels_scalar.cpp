// The specification: plain C++, one value at a time, slow where speed would cost clarity.
#include <cmath>

#include "half.hpp"
#include "kernels.hpp"

namespace surge {
namespace {

#include "kernels_common.inl"

int32_t count_bits(uint32_t x) {
    // Without -mpopcnt the builtin is a call; this is the classic parallel sum.
    x = x - (x >> 1 & 0x55555555u);
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0fu;
    return int32_t(x * 0x01010101u >> 24);
}

void binary_row(const BinaryRow& row) {
    int64_t filters = row.blocks * kLanes;
    for (int64_t p = 0; p < row.pixels; ++p) {
        const uint32_t* input = row.input + p * row.step;
        for (int64_t f = 0; f < filters; ++f) {
            const uint32_t* weights = row.weights + f / kLanes * row.words * kLanes + f % kLanes;
            int32_t count = 0;
            for (int64_t k = 0; k < row.words; ++k)
                count += count_bits(input[row.offsets[k]] ^ weights[k * kLanes]);
            row.counts[p * filters + f] = count;
        }
    }
}

float widened(const FloatRow& row, int64_t index) {
    if (row.kind == Weights::F16)
        return from_half(static_cast<const uint16_t*>(row.weights)[index]);
    if (row.kind == Weights::I8) return float(static_cast<const int8_t*>(row.weights)[index]);
    return static_cast<const float*>(row.weights)[index];
}

void float_row(const FloatRow& row) {
    int64_t filters = row.blocks * kLanes;
    int64_t depth = row.runs * row.length;
    for (int64_t p = 0; p < row.pixels; ++p) {
        const float* input = row.input + p * row.step;
        for (int64_t f = 0; f < filters; ++f) {
            int64_t first = f / kLanes * depth * kLanes + f % kLanes;
            float sum = 0.0f;
            for (int64_t r = 0; r < row.runs; ++r)
                for (int64_t c = 0; c < row.length; ++c)
                    sum = std::fma(input[row.offsets[r] + c],
                                   widened(row, first + (r * row.length + c) * kLanes), sum);
            row.sums[p * filters + f] = sum;
        }
    }
}

void byte_row(const ByteRow& row) {
    int64_t filters = row.blocks * kLanes;
    for (int64_t p = 0; p < row.pixels; ++p)
        for (int64_t f = 0; f < filters; ++f) {
            const int8_t* weights =
                row.weights + (f / kLanes * row.quads * kLanes + f % kLanes) * 4;
            int32_t sum = 0;
            for (int64_t q = 0; q < row.quads; ++q)
                for (int64_t i = 0; i < 4; ++i)
                    sum += int32_t(row.input[p * row.step + row.offsets[q] + i]) *
                           int32_t(weights[q * kLanes * 4 + i]);
            row.sums[p * filters + f] = sum;
        }
}

void sign_row(const SignRow& row) { sign_pixels(row, sign_word); }

void binary_finish(const BinaryRow& row, const FinishRow& end) {
    binary_then_finish(row, end, binary_row, sign_row);
}

}  // namespace

extern const Kernels kScalarKernels;
const Kernels kScalarKernels = {
    "scalar",          binary_row,      binary_finish, binary_depth_row,
    float_row,       float_depth_row, byte_row,      finish_row,
    sign_row,        max_row,         average_row,   byte_pixels,
    plane_bits_one_by_one, add_plane,
};

}  // namespace surge
