// AVX2: no population count for vectors, so bytes are counted by a table of 16 entries.
#include <immintrin.h>

#include "kernels.hpp"

namespace surge {
namespace {

#include "kernels_common.inl"

// A byte counter grows by at most 8 per word: it must be emptied before it passes 255.
constexpr int64_t kWordsPerByte = 31;

inline __m256i count_bytes(__m256i x) {
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                           0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(x, nibble));
    __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble);
    return _mm256_add_epi8(low, _mm256_shuffle_epi8(table, high));
}

// The eight 64-bit sums of a block as 32-bit numbers.
inline void store_counts(__m256i low, __m256i high, int32_t* counts) {
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    __m256i a = _mm256_permutevar8x32_epi32(low, even);
    __m256i b = _mm256_permutevar8x32_epi32(high, even);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(counts), _mm256_blend_epi32(a, b, 0xf0));
}

template <int64_t pixels>
inline void binary_tile(const BinaryRow& row, const uint64_t* input, const uint64_t* weights,
                        int32_t* counts) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i total[pixels][2];
    for (int64_t p = 0; p < pixels; ++p) total[p][0] = total[p][1] = zero;
    for (int64_t start = 0; start < row.words; start += kWordsPerByte) {
        int64_t end = start + kWordsPerByte < row.words ? start + kWordsPerByte : row.words;
        __m256i bytes[pixels][2];
        for (int64_t p = 0; p < pixels; ++p) bytes[p][0] = bytes[p][1] = zero;
        for (int64_t k = start; k < end; ++k) {
            auto* w = reinterpret_cast<const __m256i*>(weights + k * kBinaryLanes);
            __m256i low = _mm256_load_si256(w), high = _mm256_load_si256(w + 1);
            const uint64_t* words = input + row.offsets[k];
            for (int64_t p = 0; p < pixels; ++p) {
                __m256i x = _mm256_set1_epi64x(int64_t(words[p * row.step]));
                bytes[p][0] = _mm256_add_epi8(bytes[p][0], count_bytes(_mm256_xor_si256(x, low)));
                bytes[p][1] = _mm256_add_epi8(bytes[p][1], count_bytes(_mm256_xor_si256(x, high)));
            }
        }
        for (int64_t p = 0; p < pixels; ++p)
            for (int half = 0; half < 2; ++half)
                total[p][half] =
                    _mm256_add_epi64(total[p][half], _mm256_sad_epu8(bytes[p][half], zero));
    }
    for (int64_t p = 0; p < pixels; ++p)
        store_counts(total[p][0], total[p][1], counts + p * row.blocks * kBinaryLanes);
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
    __m256 low[pixels], high[pixels];
    for (int64_t p = 0; p < pixels; ++p) low[p] = high[p] = _mm256_setzero_ps();
    for (int64_t t = 0; t < row.taps; ++t) {
        const float* x = input + row.offsets[t];
        for (int64_t c = 0; c < row.channels; ++c, weights += kFloatLanes) {
            __m256 w0 = _mm256_load_ps(weights), w1 = _mm256_load_ps(weights + 8);
            for (int64_t p = 0; p < pixels; ++p) {
                __m256 value = _mm256_set1_ps(x[p * row.step + c]);
                low[p] = _mm256_fmadd_ps(value, w0, low[p]);
                high[p] = _mm256_fmadd_ps(value, w1, high[p]);
            }
        }
    }
    for (int64_t p = 0; p < pixels; ++p) {
        _mm256_storeu_ps(sums + p * row.blocks * kFloatLanes, low[p]);
        _mm256_storeu_ps(sums + p * row.blocks * kFloatLanes + 8, high[p]);
    }
}

void float_row(const FloatRow& row) {
    int64_t pitch = row.blocks * kFloatLanes;
    for (int64_t b = 0; b < row.blocks; ++b) {
        const float* weights = row.weights + b * row.taps * row.channels * kFloatLanes;
        float* sums = row.sums + b * kFloatLanes;
        int64_t p = 0;
        for (; p + 6 <= row.pixels; p += 6)
            float_tile<6>(row, row.input + p * row.step, weights, sums + p * pitch);
        for (; p < row.pixels; ++p)
            float_tile<1>(row, row.input + p * row.step, weights, sums + p * pitch);
    }
}

inline uint64_t sign_lanes(const float* x, const float* shift, int64_t count) {
    uint64_t word = 0;
    int64_t c = 0;
    for (; c + 8 <= count; c += 8) {
        __m256 value = _mm256_loadu_ps(x + c);
        if (shift) value = _mm256_add_ps(value, _mm256_loadu_ps(shift + c));
        __m256 positive = _mm256_cmp_ps(value, _mm256_setzero_ps(), _CMP_GE_OQ);
        word |= uint64_t(unsigned(_mm256_movemask_ps(positive))) << c;
    }
    if (c == count) return word;
    return word | sign_word(x + c, shift ? shift + c : nullptr, count - c) << c;
}

void sign_row(const SignRow& row) {
    auto wide = [](const float* x, const float* shift) { return sign_lanes(x, shift, 64); };
    auto tail = [](const float* x, const float* shift, int64_t count) {
        return sign_lanes(x, shift, count);
    };
    sign_pixels(row, wide, tail);
}

}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {"avx2", binary_row, float_row, finish_row, sign_row};

}  // namespace surge
