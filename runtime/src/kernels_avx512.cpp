// AVX-512 with VPOPCNTDQ: eight filters in one register, seven pixels at a time.
#include <immintrin.h>

#include "kernels.hpp"

namespace surge {
namespace {

#include "kernels_common.inl"

constexpr int64_t kPixels = 7;  // 56, 28, 14 and 7 are the widths of the usual networks

constexpr int kXor3 = 0x96;   // a ^ b ^ c
constexpr int kCarry = 0x3a;  // t ? ~n : s, for operands (t, n, s); see below

// Two words at a time through a full adder: with s the pending ones and a = x1 ^ w1, b = x2 ^ w2,
//     t = s ^ a,  n = t ^ b (the new pending ones),  carry = t ? ~n : s
// so that one population count serves two words; the carry counts double.
template <int64_t pixels>
inline void binary_tile(const BinaryRow& row, const uint64_t* input, const uint64_t* weights,
                        int32_t* counts) {
    __m512i pairs[pixels], pending[pixels];
    for (int64_t p = 0; p < pixels; ++p) pairs[p] = pending[p] = _mm512_setzero_si512();
    int64_t k = 0;
    for (; k + 2 <= row.words; k += 2) {
        __m512i w1 = _mm512_load_si512(weights + k * kBinaryLanes);
        __m512i w2 = _mm512_load_si512(weights + (k + 1) * kBinaryLanes);
        const uint64_t* x1 = input + row.offsets[k];
        const uint64_t* x2 = input + row.offsets[k + 1];
        for (int64_t p = 0; p < pixels; ++p) {
            __m512i a = _mm512_set1_epi64(int64_t(x1[p * row.step]));
            __m512i b = _mm512_set1_epi64(int64_t(x2[p * row.step]));
            __m512i t = _mm512_ternarylogic_epi64(pending[p], w1, a, kXor3);
            __m512i n = _mm512_ternarylogic_epi64(t, w2, b, kXor3);
            __m512i carry = _mm512_ternarylogic_epi64(t, n, pending[p], kCarry);
            pending[p] = n;
            pairs[p] = _mm512_add_epi64(pairs[p], _mm512_popcnt_epi64(carry));
        }
    }
    for (int64_t p = 0; p < pixels; ++p) {
        __m512i total = _mm512_slli_epi64(pairs[p], 1);
        total = _mm512_add_epi64(total, _mm512_popcnt_epi64(pending[p]));
        if (k < row.words) {
            __m512i w = _mm512_load_si512(weights + k * kBinaryLanes);
            __m512i x = _mm512_set1_epi64(int64_t(input[row.offsets[k] + p * row.step]));
            total = _mm512_add_epi64(total, _mm512_popcnt_epi64(_mm512_xor_si512(x, w)));
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(counts + p * row.blocks * kBinaryLanes),
                            _mm512_cvtepi64_epi32(total));
    }
}

void binary_row(const BinaryRow& row) {
    int64_t filters = row.blocks * kBinaryLanes;
    for (int64_t block = 0; block < row.blocks; ++block) {
        const uint64_t* weights = row.weights + block * row.words * kBinaryLanes;
        int32_t* counts = row.counts + block * kBinaryLanes;
        int64_t p = 0;
        for (; p + kPixels <= row.pixels; p += kPixels)
            binary_tile<kPixels>(row, row.input + p * row.step, weights, counts + p * filters);
        for (; p + 2 <= row.pixels; p += 2)
            binary_tile<2>(row, row.input + p * row.step, weights, counts + p * filters);
        for (; p < row.pixels; ++p)
            binary_tile<1>(row, row.input + p * row.step, weights, counts + p * filters);
    }
}

// `pixels` x `blocks` * 16 sums in registers; the order of the products is the specification's.
template <int64_t pixels, int64_t blocks>
inline void float_tile(const FloatRow& row, const float* input, const float* weights, float* sums) {
    int64_t depth = row.taps * row.channels;
    __m512 acc[pixels][blocks];
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t b = 0; b < blocks; ++b) acc[p][b] = _mm512_setzero_ps();
    const float* w = weights;
    for (int64_t t = 0; t < row.taps; ++t) {
        const float* x = input + row.offsets[t];
        for (int64_t c = 0; c < row.channels; ++c, w += kFloatLanes) {
            __m512 filter[blocks];
            for (int64_t b = 0; b < blocks; ++b)
                filter[b] = _mm512_load_ps(w + b * depth * kFloatLanes);
            for (int64_t p = 0; p < pixels; ++p) {
                __m512 value = _mm512_set1_ps(x[p * row.step + c]);
                for (int64_t b = 0; b < blocks; ++b)
                    acc[p][b] = _mm512_fmadd_ps(value, filter[b], acc[p][b]);
            }
        }
    }
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t b = 0; b < blocks; ++b)
            _mm512_storeu_ps(sums + (p * row.blocks + b) * kFloatLanes, acc[p][b]);
}

// The sums of a tile, its filters and one input must fit into the 32 registers.
template <int64_t pixels, int64_t blocks>
inline void float_blocks(const FloatRow& row, int64_t first) {
    const float* weights = row.weights + first * row.taps * row.channels * kFloatLanes;
    float* sums = row.sums + first * kFloatLanes;
    int64_t pitch = row.blocks * kFloatLanes, p = 0;
    for (; p + pixels <= row.pixels; p += pixels)
        float_tile<pixels, blocks>(row, row.input + p * row.step, weights, sums + p * pitch);
    for (; p < row.pixels; ++p)
        float_tile<1, blocks>(row, row.input + p * row.step, weights, sums + p * pitch);
}

void float_row(const FloatRow& row) {
    int64_t b = 0;
    for (; b + 4 <= row.blocks; b += 4) float_blocks<4, 4>(row, b);
    for (; b + 2 <= row.blocks; b += 2) float_blocks<7, 2>(row, b);
    for (; b < row.blocks; ++b) float_blocks<14, 1>(row, b);
}

inline uint64_t signs16(const float* x, const float* shift, __mmask16 lanes) {
    __m512 value = _mm512_maskz_loadu_ps(lanes, x);
    if (shift) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, shift));
    return _mm512_mask_cmp_ps_mask(lanes, value, _mm512_setzero_ps(), _CMP_GE_OQ);
}

inline uint64_t sign_lanes(const float* x, const float* shift, int64_t count) {
    uint64_t word = 0;
    for (int64_t c = 0; c < count; c += 16) {
        int64_t left = count - c;
        __mmask16 lanes = left >= 16 ? __mmask16(0xffff) : __mmask16((1u << left) - 1);
        word |= signs16(x + c, shift ? shift + c : nullptr, lanes) << c;
    }
    return word;
}

void sign_row(const SignRow& row) {
    auto wide = [](const float* x, const float* shift) { return sign_lanes(x, shift, 64); };
    auto tail = [](const float* x, const float* shift, int64_t count) {
        return sign_lanes(x, shift, count);
    };
    sign_pixels(row, wide, tail);
}

}  // namespace

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {"avx512", binary_row, float_row, finish_row, sign_row};

}  // namespace surge
