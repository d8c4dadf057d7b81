// NEON (AArch64): two filters in one register, counted byte by byte.
#include <arm_neon.h>

#include "kernels.hpp"

namespace surge {
namespace {

#include "kernels_common.inl"

// A byte counter grows by at most 8 per word: it must be emptied before it passes 255.
constexpr int64_t kWordsPerByte = 31;
constexpr int64_t kRegisters = kBinaryLanes / 2;

template <int64_t pixels>
inline void binary_tile(const BinaryRow& row, const uint64_t* input, const uint64_t* weights,
                        int32_t* counts) {
    uint64x2_t total[pixels][kRegisters];
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t r = 0; r < kRegisters; ++r) total[p][r] = vdupq_n_u64(0);
    for (int64_t start = 0; start < row.words; start += kWordsPerByte) {
        int64_t end = start + kWordsPerByte < row.words ? start + kWordsPerByte : row.words;
        uint8x16_t bytes[pixels][kRegisters];
        for (int64_t p = 0; p < pixels; ++p)
            for (int64_t r = 0; r < kRegisters; ++r) bytes[p][r] = vdupq_n_u8(0);
        for (int64_t k = start; k < end; ++k)
            for (int64_t p = 0; p < pixels; ++p) {
                uint64x2_t x = vdupq_n_u64(input[row.offsets[k] + p * row.step]);
                for (int64_t r = 0; r < kRegisters; ++r) {
                    uint64x2_t w = vld1q_u64(weights + k * kBinaryLanes + 2 * r);
                    uint8x16_t ones = vcntq_u8(vreinterpretq_u8_u64(veorq_u64(x, w)));
                    bytes[p][r] = vaddq_u8(bytes[p][r], ones);
                }
            }
        for (int64_t p = 0; p < pixels; ++p)
            for (int64_t r = 0; r < kRegisters; ++r)
                total[p][r] = vpadalq_u32(
                    total[p][r], vpaddlq_u16(vpaddlq_u8(bytes[p][r])));
    }
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t r = 0; r < kRegisters; ++r)
            vst1_s32(counts + p * row.blocks * kBinaryLanes + 2 * r,
                     vreinterpret_s32_u32(vmovn_u64(total[p][r])));
}

void binary_row(const BinaryRow& row) {
    int64_t filters = row.blocks * kBinaryLanes;
    for (int64_t block = 0; block < row.blocks; ++block) {
        const uint64_t* weights = row.weights + block * row.words * kBinaryLanes;
        int32_t* counts = row.counts + block * kBinaryLanes;
        int64_t p = 0;
        for (; p + 2 <= row.pixels; p += 2)
            binary_tile<2>(row, row.input + p * row.step, weights, counts + p * filters);
        for (; p < row.pixels; ++p)
            binary_tile<1>(row, row.input + p * row.step, weights, counts + p * filters);
    }
}

// `pixels` x 16 sums in registers; the order of the products is the specification's.
template <int64_t pixels>
inline void float_tile(const FloatRow& row, const float* input, const float* weights, float* sums) {
    float32x4_t acc[pixels][4];
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t r = 0; r < 4; ++r) acc[p][r] = vdupq_n_f32(0.0f);
    for (int64_t t = 0; t < row.taps; ++t) {
        const float* x = input + row.offsets[t];
        for (int64_t c = 0; c < row.channels; ++c, weights += kFloatLanes)
            for (int64_t p = 0; p < pixels; ++p)
                for (int64_t r = 0; r < 4; ++r)
                    acc[p][r] = vfmaq_n_f32(acc[p][r], vld1q_f32(weights + 4 * r),
                                            x[p * row.step + c]);
    }
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t r = 0; r < 4; ++r)
            vst1q_f32(sums + p * row.blocks * kFloatLanes + 4 * r, acc[p][r]);
}

void float_row(const FloatRow& row) {
    int64_t pitch = row.blocks * kFloatLanes;
    for (int64_t b = 0; b < row.blocks; ++b) {
        const float* weights = row.weights + b * row.taps * row.channels * kFloatLanes;
        float* sums = row.sums + b * kFloatLanes;
        int64_t p = 0;
        for (; p + 5 <= row.pixels; p += 5)
            float_tile<5>(row, row.input + p * row.step, weights, sums + p * pitch);
        for (; p < row.pixels; ++p)
            float_tile<1>(row, row.input + p * row.step, weights, sums + p * pitch);
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

extern const Kernels kNeonKernels;
const Kernels kNeonKernels = {"neon", binary_row, float_row, finish_row, sign_row};

}  // namespace surge
