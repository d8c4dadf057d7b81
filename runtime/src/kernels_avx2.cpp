// AVX2: no population count for vectors, so bytes are counted by a table of 16 entries.
#include <immintrin.h>

#include "kernels.hpp"

namespace surge {
namespace {

#include "kernels_common.inl"

// A byte counter grows by at most 8 per word: it must be emptied before it passes 255.
constexpr int64_t kWordsPerByte = 31;
// As many real sums as the registers hold beside weights and an input.
constexpr int64_t kFloatPixels = 6;

inline __m256i count_bytes(__m256i x) {
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                           0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(x, nibble));
    __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble);
    return _mm256_add_epi8(low, _mm256_shuffle_epi8(table, high));
}

// Bytes of counts as eight 32-bit sums.
inline __m256i widen_counts(__m256i bytes) {
    __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

template <int64_t pixels>
inline void binary_tile(const BinaryRow& row, const uint32_t* input, const uint32_t* weights,
                        int32_t* counts) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i total[pixels][2];
    for (int64_t p = 0; p < pixels; ++p) total[p][0] = total[p][1] = zero;
    for (int64_t start = 0; start < row.words; start += kWordsPerByte) {
        int64_t end = start + kWordsPerByte < row.words ? start + kWordsPerByte : row.words;
        __m256i bytes[pixels][2];
        for (int64_t p = 0; p < pixels; ++p) bytes[p][0] = bytes[p][1] = zero;
        for (int64_t k = start; k < end; ++k) {
            auto* w = reinterpret_cast<const __m256i*>(weights + k * kLanes);
            __m256i low = _mm256_load_si256(w), high = _mm256_load_si256(w + 1);
            const uint32_t* words = input + row.offsets[k];
            for (int64_t p = 0; p < pixels; ++p) {
                __m256i x = _mm256_set1_epi32(int32_t(words[p * row.step]));
                bytes[p][0] = _mm256_add_epi8(bytes[p][0], count_bytes(_mm256_xor_si256(x, low)));
                bytes[p][1] = _mm256_add_epi8(bytes[p][1], count_bytes(_mm256_xor_si256(x, high)));
            }
        }
        for (int64_t p = 0; p < pixels; ++p)
            for (int half = 0; half < 2; ++half)
                total[p][half] = _mm256_add_epi32(total[p][half], widen_counts(bytes[p][half]));
    }
    for (int64_t p = 0; p < pixels; ++p) {
        auto* out = reinterpret_cast<__m256i*>(counts + p * row.blocks * kLanes);
        _mm256_storeu_si256(out, total[p][0]);
        _mm256_storeu_si256(out + 1, total[p][1]);
    }
}

// Eight weights, widened.
inline __m256 load(const float* w) { return _mm256_load_ps(w); }
inline __m256 load(const uint16_t* w) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(w)));
}
inline __m256 load(const int8_t* w) {
    __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

// `pixels` x 16 sums in registers; the order of the products is the specification's.
template <int64_t pixels, typename Weight>
inline void float_tile(const FloatRow& row, const float* input, const Weight* weights,
                       float* sums) {
    __m256 low[pixels], high[pixels];
    for (int64_t p = 0; p < pixels; ++p) low[p] = high[p] = _mm256_setzero_ps();
    for (int64_t r = 0; r < row.runs; ++r) {
        const float* x = input + row.offsets[r];
        for (int64_t c = 0; c < row.length; ++c, weights += kLanes) {
            __m256 w0 = load(weights), w1 = load(weights + 8);
            for (int64_t p = 0; p < pixels; ++p) {
                __m256 value = _mm256_set1_ps(x[p * row.step + c]);
                low[p] = _mm256_fmadd_ps(value, w0, low[p]);
                high[p] = _mm256_fmadd_ps(value, w1, high[p]);
            }
        }
    }
    for (int64_t p = 0; p < pixels; ++p) {
        _mm256_storeu_ps(sums + p * row.blocks * kLanes, low[p]);
        _mm256_storeu_ps(sums + p * row.blocks * kLanes + 8, high[p]);
    }
}

#include "tiled_rows.inl"

// Products of bytes in pairs would saturate at 16 bits, so both sides are widened first: four
// filters of a quad, then their four sums of pairs joined.
inline __m256i quads_of(__m256i x, const int8_t* w) {
    __m256i filters = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(w)));
    return _mm256_madd_epi16(x, filters);
}

void byte_row(const ByteRow& row) {
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    for (int64_t p = 0; p < row.pixels; ++p)
        for (int64_t b = 0; b < row.blocks; ++b) {
            const int8_t* w = row.weights + b * row.quads * kLanes * 4;
            __m256i acc[4];
            for (int i = 0; i < 4; ++i) acc[i] = _mm256_setzero_si256();
            for (int64_t q = 0; q < row.quads; ++q, w += kLanes * 4) {
                int32_t four;
                __builtin_memcpy(&four, row.input + p * row.step + row.offsets[q], 4);
                __m256i x = _mm256_cvtepu8_epi16(_mm_set1_epi32(four));
                for (int i = 0; i < 4; ++i)
                    acc[i] = _mm256_add_epi32(acc[i], quads_of(x, w + 16 * i));
            }
            auto* out = reinterpret_cast<__m256i*>(row.sums + (p * row.blocks + b) * kLanes);
            for (int half = 0; half < 2; ++half) {
                __m256i sums = _mm256_hadd_epi32(acc[2 * half], acc[2 * half + 1]);
                _mm256_storeu_si256(out + half, _mm256_permutevar8x32_epi32(sums, order));
            }
        }
}

inline uint32_t sign_lanes(const float* x, const float* shift, int64_t count) {
    uint32_t word = 0;
    int64_t c = 0;
    for (; c + 8 <= count; c += 8) {
        __m256 value = _mm256_loadu_ps(x + c);
        if (shift) value = _mm256_add_ps(value, _mm256_loadu_ps(shift + c));
        __m256 positive = _mm256_cmp_ps(value, _mm256_setzero_ps(), _CMP_GE_OQ);
        word |= uint32_t(_mm256_movemask_ps(positive)) << c;
    }
    if (c == count) return word;
    return word | sign_word(x + c, shift ? shift + c : nullptr, count - c) << c;
}

void sign_row(const SignRow& row) { sign_pixels(row, sign_lanes); }

void binary_finish(const BinaryRow& row, const FinishRow& end) {
    binary_then_finish(row, end, binary_row, sign_row);
}

}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {
    "avx2",          binary_row,      binary_finish, binary_depth_row,
    float_row,       float_depth_row, byte_row,      finish_row,
    sign_row,        max_row,         average_row,   byte_pixels,
    plane_bits_one_by_one, add_plane,
};

}  // namespace surge
