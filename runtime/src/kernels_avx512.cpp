// AVX-512 with VPOPCNTDQ and VNNI: sixteen filters in one register, several pixels at a time.
#include <immintrin.h>

#include "kernels.hpp"

namespace surge {
namespace {

#include "kernels_common.inl"
#include "ending_avx512.inl"

// Four words of one pixel through two full adders. The compiler would copy a register for every
// operand that an instruction overwrites, as many copies as operations; written out, each of them
// overwrites what is not needed any more. 0x96 is a ^ b ^ c, 0x74 is t ? ~n : s for (s, t, n).
inline __attribute__((always_inline)) void add_four(const uint32_t* x1, const uint32_t* x2,
                                                    const uint32_t* x3, const uint32_t* x4,
                                                    const __m512i* w, __m512i& pairs,
                                                    __m512i& pending) {
    __m512i t, n;
    asm("vpbroadcastd %4, %2\n\t"
        "vpternlogd $0x96, %8, %1, %2\n\t"
        "vpbroadcastd %5, %3\n\t"
        "vpternlogd $0x96, %9, %2, %3\n\t"
        "vpternlogd $0x74, %3, %2, %1\n\t"
        "vpopcntd %1, %1\n\t"
        "vpaddd %1, %0, %0\n\t"
        "vpbroadcastd %6, %2\n\t"
        "vpternlogd $0x96, %10, %3, %2\n\t"
        "vpbroadcastd %7, %1\n\t"
        "vpternlogd $0x96, %11, %2, %1\n\t"
        "vpternlogd $0x74, %1, %2, %3\n\t"
        "vpopcntd %3, %3\n\t"
        "vpaddd %3, %0, %0"
        : "+v"(pairs), "+v"(pending), "=&v"(t), "=&v"(n)
        : "m"(*x1), "m"(*x2), "m"(*x3), "m"(*x4), "v"(w[0]), "v"(w[1]), "v"(w[2]), "v"(w[3]));
}

// Counts of `pixels` x 16 filters. Two words at a time go through a full adder: with s the pending
// ones and a = x1 ^ w1, b = x2 ^ w2,
//     t = s ^ a,  n = t ^ b (the new pending ones),  carry = t ? ~n : s
// so that one population count serves two words; the carry counts double.
template <int64_t pixels>
inline __attribute__((always_inline)) void count_tile(const BinaryRow& row, const uint32_t* input,
                                                      const uint32_t* weights, __m512i* counts) {
    __m512i pairs[pixels], pending[pixels];
    for (int64_t p = 0; p < pixels; ++p) pairs[p] = pending[p] = _mm512_setzero_si512();
    const int64_t step = row.step, words = row.words;
    const int32_t* offsets = row.offsets;
    int64_t k = 0;
    if (words % 4 >= 2) {  // two words that do not fill a four, while nothing is pending
        __m512i w1 = _mm512_load_si512(weights), w2 = _mm512_load_si512(weights + kLanes);
        const uint32_t *x1 = input + offsets[0], *x2 = input + offsets[1];
#pragma GCC unroll 8
        for (int64_t p = 0; p < pixels; ++p) {
            __m512i t = _mm512_xor_si512(w1, _mm512_set1_epi32(int32_t(x1[p * step])));
            __m512i x = _mm512_set1_epi32(int32_t(x2[p * step]));
            pending[p] = _mm512_ternarylogic_epi32(x, w2, t, 0x96);
            pairs[p] = _mm512_popcnt_epi32(_mm512_andnot_si512(pending[p], t));
        }
        k = 2, weights += 2 * kLanes;
    }
    for (; k + 4 <= words; k += 4, weights += 4 * kLanes) {
        __m512i w[4];
        for (int i = 0; i < 4; ++i) w[i] = _mm512_load_si512(weights + i * kLanes);
        const uint32_t *x1 = input + offsets[k], *x2 = input + offsets[k + 1];
        const uint32_t *x3 = input + offsets[k + 2], *x4 = input + offsets[k + 3];
#pragma GCC unroll 8
        for (int64_t p = 0; p < pixels; ++p)
            add_four(x1 + p * step, x2 + p * step, x3 + p * step, x4 + p * step, w, pairs[p],
                     pending[p]);
    }
    for (int64_t p = 0; p < pixels; ++p) {
        __m512i total = _mm512_add_epi32(pairs[p], pairs[p]);
        total = _mm512_add_epi32(total, _mm512_popcnt_epi32(pending[p]));
        if (k < words) {
            __m512i x = _mm512_set1_epi32(int32_t(input[offsets[k] + p * step]));
            __m512i w = _mm512_load_si512(weights);
            total = _mm512_add_epi32(total, _mm512_popcnt_epi32(_mm512_xor_si512(x, w)));
        }
        counts[p] = total;
    }
}

// Calls tile<n>(first pixel) for all pixels: 56, 28, 14 and 7 are the widths of the usual networks
// for large images, 32, 16 and 8 for small ones.
template <typename Tile>
inline __attribute__((always_inline)) void over_pixels(int64_t pixels, Tile tile) {
    int64_t p = 0;
    if (pixels % 7 == 0) {
        for (; p < pixels; p += 7) tile.template operator()<7>(p);
        return;
    }
    for (; p + 8 <= pixels; p += 8) tile.template operator()<8>(p);
    for (; p + 4 <= pixels; p += 4) tile.template operator()<4>(p);
    for (; p < pixels; ++p) tile.template operator()<1>(p);
}

struct StoreTile {
    const BinaryRow& row;
    const uint32_t* weights;
    int32_t* counts;
    template <int64_t pixels>
    inline __attribute__((always_inline)) void operator()(int64_t first) const {
        __m512i tile[pixels];
        count_tile<pixels>(row, row.input + first * row.step, weights, tile);
        for (int64_t p = 0; p < pixels; ++p)
            _mm512_storeu_si512(counts + (first + p) * row.blocks * kLanes, tile[p]);
    }
};

void binary_row(const BinaryRow& row) {
    for (int64_t block = 0; block < row.blocks; ++block)
        over_pixels(row.pixels, StoreTile{row, row.weights + block * row.words * kLanes,
                                          row.counts + block * kLanes});
}

template <Finish kind, Form form>
struct FinishTile {
    const BinaryRow& row;
    const uint32_t* weights;
    const FinishRow& end;
    const Ending<kind>& ending;
    template <int64_t pixels>
    inline __attribute__((always_inline)) void operator()(int64_t first) const {
        __m512i tile[pixels];
        count_tile<pixels>(row, row.input + first * row.step, weights, tile);
#pragma GCC unroll 8
        for (int64_t p = 0; p < pixels; ++p)
            ending.template finish<form>(end, first + p, tile[p]);
    }
};

template <Finish kind, Form form>
void binary_finish_rows(const BinaryRow& row, const FinishRow& call) {
    const FinishRow end = call;
    for (int64_t block = 0; block < row.blocks; ++block) {
        const Ending<kind> ending(end, block * kLanes);
        const uint32_t* weights = row.weights + block * row.words * kLanes;
        over_pixels(row.pixels, FinishTile<kind, form>{row, weights, end, ending});
    }
}

template <Finish kind>
void binary_finish_kind(const BinaryRow& row, const FinishRow& end) {
    form_of(end) == Form::Plain ? binary_finish_rows<kind, Form::Plain>(row, end)
                                : binary_finish_rows<kind, Form::Any>(row, end);
}

void binary_finish(const BinaryRow& row, const FinishRow& end) {
    if (form_of(end) == Form::Bits)
        return binary_finish_rows<Finish::None, Form::Bits>(row, end);
    switch (end.kind) {
        case Finish::None: return binary_finish_kind<Finish::None>(row, end);
        case Finish::Relu: return binary_finish_kind<Finish::Relu>(row, end);
        case Finish::Clamp: return binary_finish_kind<Finish::Clamp>(row, end);
        case Finish::Sign: return binary_finish_kind<Finish::Sign>(row, end);
        case Finish::Prelu: return binary_finish_kind<Finish::Prelu>(row, end);
        case Finish::Rprelu: return binary_finish_kind<Finish::Rprelu>(row, end);
        case Finish::Between: return binary_finish_kind<Finish::Between>(row, end);
    }
}

// Sixteen weights, widened.
inline __m512 load(const float* w) { return _mm512_load_ps(w); }
inline __m512 load(const uint16_t* w) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(w)));
}
inline __m512 load(const int8_t* w) {
    __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(w));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

// `pixels` x `blocks` * 16 sums in registers; the order of the products is the specification's.
template <int64_t pixels, int64_t blocks, typename Weight>
inline __attribute__((always_inline)) void float_tile(const FloatRow& row, const float* input,
                                                      const Weight* w, float* sums) {
    const int64_t runs = row.runs, length = row.length, step = row.step;
    const int64_t pitch = runs * length * kLanes;
    __m512 acc[pixels][blocks];
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t b = 0; b < blocks; ++b) acc[p][b] = _mm512_setzero_ps();
    for (int64_t r = 0; r < runs; ++r) {
        const float* x = input + row.offsets[r];
        for (int64_t c = 0; c < length; ++c, ++x, w += kLanes) {
            __m512 filter[blocks];
            for (int64_t b = 0; b < blocks; ++b) filter[b] = load(w + b * pitch);
            for (int64_t p = 0; p < pixels; ++p) {
                __m512 value = _mm512_set1_ps(x[p * step]);
                for (int64_t b = 0; b < blocks; ++b)
                    acc[p][b] = _mm512_fmadd_ps(value, filter[b], acc[p][b]);
            }
        }
    }
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t b = 0; b < blocks; ++b)
            _mm512_storeu_ps(sums + (p * row.blocks + b) * kLanes, acc[p][b]);
}

// The sums of a tile, its filters and one input must fit into the 32 registers.
template <int64_t pixels, int64_t blocks, typename Weight>
inline void float_blocks(const FloatRow& row, int64_t first) {
    const Weight* weights =
        static_cast<const Weight*>(row.weights) + first * row.runs * row.length * kLanes;
    float* sums = row.sums + first * kLanes;
    int64_t pitch = row.blocks * kLanes, p = 0;
    for (; p + pixels <= row.pixels; p += pixels)
        float_tile<pixels, blocks>(row, row.input + p * row.step, weights, sums + p * pitch);
    constexpr int64_t half = pixels / 2;
    for (; p + half <= row.pixels; p += half)
        float_tile<half, blocks>(row, row.input + p * row.step, weights, sums + p * pitch);
    for (; p < row.pixels; ++p)
        float_tile<1, blocks>(row, row.input + p * row.step, weights, sums + p * pitch);
}

template <typename Weight>
void float_weights(const FloatRow& row) {
    int64_t b = 0;
    for (; b + 4 <= row.blocks; b += 4) float_blocks<6, 4, Weight>(row, b);
    for (; b + 2 <= row.blocks; b += 2) float_blocks<12, 2, Weight>(row, b);
    for (; b < row.blocks; ++b) float_blocks<14, 1, Weight>(row, b);
}

void float_row(const FloatRow& row) {
    switch (row.kind) {
        case Weights::F32: return float_weights<float>(row);
        case Weights::F16: return float_weights<uint16_t>(row);
        case Weights::I8: return float_weights<int8_t>(row);
    }
}

template <int64_t pixels, int64_t blocks>
inline __attribute__((always_inline)) void byte_tile(const ByteRow& row, const uint8_t* input,
                                                     const int8_t* w, int32_t* sums) {
    const int64_t quads = row.quads, step = row.step, pitch = quads * kLanes * 4;
    __m512i acc[pixels][blocks];
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t b = 0; b < blocks; ++b) acc[p][b] = _mm512_setzero_si512();
    for (int64_t q = 0; q < quads; ++q, w += kLanes * 4) {
        const uint8_t* x = input + row.offsets[q];
        __m512i filter[blocks];
        for (int64_t b = 0; b < blocks; ++b) filter[b] = _mm512_load_si512(w + b * pitch);
        for (int64_t p = 0; p < pixels; ++p) {
            int32_t four;
            __builtin_memcpy(&four, x + p * step, 4);
            __m512i value = _mm512_set1_epi32(four);
            for (int64_t b = 0; b < blocks; ++b)
                acc[p][b] = _mm512_dpbusd_epi32(acc[p][b], value, filter[b]);
        }
    }
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t b = 0; b < blocks; ++b)
            _mm512_storeu_si512(sums + (p * row.blocks + b) * kLanes, acc[p][b]);
}

template <int64_t pixels, int64_t blocks>
inline void byte_blocks(const ByteRow& row, int64_t first) {
    const int8_t* weights = row.weights + first * row.quads * kLanes * 4;
    int32_t* sums = row.sums + first * kLanes;
    int64_t pitch = row.blocks * kLanes, p = 0;
    for (; p + pixels <= row.pixels; p += pixels)
        byte_tile<pixels, blocks>(row, row.input + p * row.step, weights, sums + p * pitch);
    for (; p < row.pixels; ++p)
        byte_tile<1, blocks>(row, row.input + p * row.step, weights, sums + p * pitch);
}

void byte_row(const ByteRow& row) {
    int64_t b = 0;
    for (; b + 4 <= row.blocks; b += 4) byte_blocks<4, 4>(row, b);
    for (; b < row.blocks; ++b) byte_blocks<14, 1>(row, b);
}

inline uint32_t signs16(const float* x, const float* shift, __mmask16 lanes) {
    __m512 value = _mm512_maskz_loadu_ps(lanes, x);
    if (shift) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, shift));
    return _mm512_mask_cmp_ps_mask(lanes, value, _mm512_setzero_ps(), _CMP_GE_OQ);
}

inline uint32_t sign_lanes(const float* x, const float* shift, int64_t count) {
    uint32_t word = signs16(x, shift, lanes_of(count));
    if (count <= kLanes) return word;
    const float* upper = shift ? shift + kLanes : nullptr;
    return word | signs16(x + kLanes, upper, lanes_of(count - kLanes)) << kLanes;
}

void sign_row(const SignRow& row) { sign_pixels(row, sign_lanes); }

inline uint32_t plane16(const float* x, __mmask16 lanes, bool ternary, int64_t plane) {
    const __m512 zero = _mm512_setzero_ps();
    __m512 value = _mm512_maskz_loadu_ps(lanes, x);
    if (ternary)
        return plane == 0 ? _mm512_cmp_ps_mask(value, zero, _CMP_GT_OQ)
                          : _mm512_cmp_ps_mask(value, zero, _CMP_LT_OQ);
    // The larger of a NaN and zero is zero, in this order of operands.
    __m512i digits = _mm512_cvttps_epi32(_mm512_max_ps(value, zero));
    return _mm512_test_epi32_mask(digits, _mm512_set1_epi32(1 << plane));
}

void plane_bits(const PlaneBits& row) {
    plane_words(row, [&](const float* x, int64_t count, int64_t plane) {
        uint32_t word = plane16(x, lanes_of(count), row.ternary, plane);
        if (count <= kLanes) return word;
        return word | plane16(x + kLanes, lanes_of(count - kLanes), row.ternary, plane) << kLanes;
    });
}

}  // namespace

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {
    "avx512",          binary_row,      binary_finish, binary_depth_row,
    float_row,       float_depth_row, byte_row,      finish_row,
    sign_row,        max_row,         average_row,   byte_pixels,
    plane_bits, add_plane,
};

}  // namespace surge
