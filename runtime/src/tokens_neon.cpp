// Rows of tokens with NEON.
#include "tokens.hpp"

namespace surge {
namespace {

#include "tokens.inl"

void above_row(const AboveRow& row) { above_pixels(row, above_word); }

}  // namespace

extern const TokenKernels kNeonTokens;
const TokenKernels kNeonTokens = {norm_row, softmax_row, gelu,     tanh_values,
                                  sigmoid,  above_row,   products};

}  // namespace surge
