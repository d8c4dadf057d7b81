// Rows of tokens with AVX2.
#include <immintrin.h>

#include "tokens.hpp"

namespace surge {
namespace {

#include "tokens.inl"

inline uint32_t above_lanes(const float* x, const float* shift, float limit, int64_t count) {
    uint32_t word = 0;
    int64_t c = 0;
    for (; c + 8 <= count; c += 8) {
        __m256 value = _mm256_loadu_ps(x + c);
        if (shift) value = _mm256_add_ps(value, _mm256_loadu_ps(shift + c));
        __m256 above = _mm256_cmp_ps(value, _mm256_set1_ps(limit), _CMP_GT_OQ);
        word |= uint32_t(_mm256_movemask_ps(above)) << c;
    }
    if (c == count) return word;
    return word | above_word(x + c, shift ? shift + c : nullptr, limit, count - c) << c;
}

void above_row(const AboveRow& row) { above_pixels(row, above_lanes); }

}  // namespace

extern const TokenKernels kAvx2Tokens;
const TokenKernels kAvx2Tokens = {norm_row, softmax_row, gelu,     tanh_values,
                                  sigmoid,  above_row,   products};

}  // namespace surge
