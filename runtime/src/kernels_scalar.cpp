// The specification: plain C++, one value at a time, slow where speed would cost clarity.
#include <cmath>

#include "kernels.hpp"

namespace surge {
namespace {

#include "kernels_common.inl"

int32_t count_bits(uint64_t x) {
    // Without -mpopcnt the builtin is a call; this is the classic parallel sum.
    x = x - (x >> 1 & 0x5555555555555555u);
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return int32_t(x * 0x0101010101010101u >> 56);
}

void binary_row(const BinaryRow& row) {
    int64_t filters = row.blocks * kBinaryLanes;
    for (int64_t p = 0; p < row.pixels; ++p) {
        const uint64_t* input = row.input + p * row.step;
        for (int64_t f = 0; f < filters; ++f) {
            const uint64_t* weights = row.weights + f / kBinaryLanes * row.words * kBinaryLanes;
            int32_t count = 0;
            for (int64_t k = 0; k < row.words; ++k)
                count += count_bits(input[row.offsets[k]] ^
                                    weights[k * kBinaryLanes + f % kBinaryLanes]);
            row.counts[p * filters + f] = count;
        }
    }
}

void float_row(const FloatRow& row) {
    int64_t filters = row.blocks * kFloatLanes;
    int64_t depth = row.taps * row.channels;
    for (int64_t p = 0; p < row.pixels; ++p) {
        const float* input = row.input + p * row.step;
        for (int64_t f = 0; f < filters; ++f) {
            const float* weights = row.weights + f / kFloatLanes * depth * kFloatLanes;
            float sum = 0.0f;
            for (int64_t t = 0; t < row.taps; ++t)
                for (int64_t c = 0; c < row.channels; ++c)
                    sum = std::fma(input[row.offsets[t] + c],
                                   weights[(t * row.channels + c) * kFloatLanes + f % kFloatLanes],
                                   sum);
            row.sums[p * filters + f] = sum;
        }
    }
}

void sign_row(const SignRow& row) {
    auto wide = [](const float* x, const float* shift) { return sign_word(x, shift, 64); };
    auto tail = [](const float* x, const float* shift, int64_t count) {
        return sign_word(x, shift, count);
    };
    sign_pixels(row, wide, tail);
}

}  // namespace

extern const Kernels kScalarKernels;
const Kernels kScalarKernels = {"scalar", binary_row, float_row, finish_row, sign_row};

}  // namespace surge
