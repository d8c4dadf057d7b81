// Rows of tokens with AVX-512.
#include <immintrin.h>

#include "tokens.hpp"

namespace surge {
namespace {

#include "tokens.inl"

inline uint32_t above16(const float* x, const float* shift, float limit, int64_t count) {
    __mmask16 lanes = count >= 16 ? __mmask16(0xffff) : __mmask16((1u << count) - 1u);
    __m512 value = _mm512_maskz_loadu_ps(lanes, x);
    if (shift) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, shift));
    return _mm512_mask_cmp_ps_mask(lanes, value, _mm512_set1_ps(limit), _CMP_GT_OQ);
}

inline uint32_t above_lanes(const float* x, const float* shift, float limit, int64_t count) {
    uint32_t word = above16(x, shift, limit, count);
    if (count <= 16) return word;
    return word | above16(x + 16, shift ? shift + 16 : nullptr, limit, count - 16) << 16;
}

void above_row(const AboveRow& row) { above_pixels(row, above_lanes); }

}  // namespace

extern const TokenKernels kAvx512Tokens;
const TokenKernels kAvx512Tokens = {norm_row, softmax_row, gelu,     tanh_values,
                                    sigmoid,  above_row,   products};

}  // namespace surge
