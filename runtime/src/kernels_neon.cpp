// NEON (AArch64): four filters in one register, counted byte by byte.
#include <arm_neon.h>

#include "kernels.hpp"

namespace surge {
namespace {

#include "kernels_common.inl"

// A byte counter grows by at most 8 per word: it must be emptied before it passes 255.
constexpr int64_t kWordsPerByte = 31;
// As many real sums as the registers hold beside weights and an input.
constexpr int64_t kFloatPixels = 5;
constexpr int64_t kRegisters = kLanes / 4;

template <int64_t pixels>
inline void binary_tile(const BinaryRow& row, const uint32_t* input, const uint32_t* weights,
                        int32_t* counts) {
    uint32x4_t total[pixels][kRegisters];
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t r = 0; r < kRegisters; ++r) total[p][r] = vdupq_n_u32(0);
    for (int64_t start = 0; start < row.words; start += kWordsPerByte) {
        int64_t end = start + kWordsPerByte < row.words ? start + kWordsPerByte : row.words;
        uint8x16_t bytes[pixels][kRegisters];
        for (int64_t p = 0; p < pixels; ++p)
            for (int64_t r = 0; r < kRegisters; ++r) bytes[p][r] = vdupq_n_u8(0);
        for (int64_t k = start; k < end; ++k)
            for (int64_t p = 0; p < pixels; ++p) {
                uint32x4_t x = vdupq_n_u32(input[row.offsets[k] + p * row.step]);
                for (int64_t r = 0; r < kRegisters; ++r) {
                    uint32x4_t w = vld1q_u32(weights + k * kLanes + 4 * r);
                    uint8x16_t ones = vcntq_u8(vreinterpretq_u8_u32(veorq_u32(x, w)));
                    bytes[p][r] = vaddq_u8(bytes[p][r], ones);
                }
            }
        for (int64_t p = 0; p < pixels; ++p)
            for (int64_t r = 0; r < kRegisters; ++r)
                total[p][r] = vpadalq_u16(total[p][r], vpaddlq_u8(bytes[p][r]));
    }
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t r = 0; r < kRegisters; ++r)
            vst1q_s32(counts + p * row.blocks * kLanes + 4 * r,
                      vreinterpretq_s32_u32(total[p][r]));
}

// Four weights, widened.
inline float32x4_t load(const float* w) { return vld1q_f32(w); }
inline float32x4_t load(const uint16_t* w) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(w)));
}
inline float32x4_t load(const int8_t* w) {
    int32_t four;
    __builtin_memcpy(&four, w, 4);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

// `pixels` x 16 sums in registers; the order of the products is the specification's.
template <int64_t pixels, typename Weight>
inline void float_tile(const FloatRow& row, const float* input, const Weight* weights,
                       float* sums) {
    float32x4_t acc[pixels][4];
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t r = 0; r < 4; ++r) acc[p][r] = vdupq_n_f32(0.0f);
    for (int64_t t = 0; t < row.runs; ++t) {
        const float* x = input + row.offsets[t];
        for (int64_t c = 0; c < row.length; ++c, weights += kLanes)
            for (int64_t r = 0; r < 4; ++r) {
                float32x4_t filter = load(weights + 4 * r);
                for (int64_t p = 0; p < pixels; ++p)
                    acc[p][r] = vfmaq_n_f32(acc[p][r], filter, x[p * row.step + c]);
            }
    }
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t r = 0; r < 4; ++r) vst1q_f32(sums + p * row.blocks * kLanes + 4 * r, acc[p][r]);
}

#include "tiled_rows.inl"

// Four filters of a quad: products of 16 bits, summed in pairs to 32 bits.
inline int32x4_t quads_of(int16x8_t x, const int8_t* w) {
    int8x16_t filters = vld1q_s8(w);
    int16x8_t low = vmovl_s8(vget_low_s8(filters)), high = vmovl_s8(vget_high_s8(filters));
    int32x4_t first = vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(low)),
                                 vmull_s16(vget_low_s16(x), vget_high_s16(low)));
    int32x4_t second = vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(high)),
                                  vmull_s16(vget_low_s16(x), vget_high_s16(high)));
    return vpaddq_s32(first, second);
}

void byte_row(const ByteRow& row) {
    for (int64_t p = 0; p < row.pixels; ++p)
        for (int64_t b = 0; b < row.blocks; ++b) {
            const int8_t* w = row.weights + b * row.quads * kLanes * 4;
            int32x4_t acc[4];
            for (int i = 0; i < 4; ++i) acc[i] = vdupq_n_s32(0);
            for (int64_t q = 0; q < row.quads; ++q, w += kLanes * 4) {
                uint32_t four;
                __builtin_memcpy(&four, row.input + p * row.step + row.offsets[q], 4);
                uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
                for (int i = 0; i < 4; ++i)
                    acc[i] = vaddq_s32(acc[i], quads_of(vreinterpretq_s16_u16(wide), w + 16 * i));
            }
            for (int i = 0; i < 4; ++i)
                vst1q_s32(row.sums + (p * row.blocks + b) * kLanes + 4 * i, acc[i]);
        }
}

void sign_row(const SignRow& row) { sign_pixels(row, sign_word); }

void binary_finish(const BinaryRow& row, const FinishRow& end) {
    binary_then_finish(row, end, binary_row, sign_row);
}

}  // namespace

extern const Kernels kNeonKernels;
const Kernels kNeonKernels = {
    "neon",          binary_row,      binary_finish, binary_depth_row,
    float_row,       float_depth_row, byte_row,      finish_row,
    sign_row,        max_row,         average_row,   byte_pixels,
    plane_bits_one_by_one, add_plane,
};

}  // namespace surge
