// Rows of tokens, the specification.
#include "tokens.hpp"

namespace surge {
namespace {

#include "tokens.inl"

void above_row(const AboveRow& row) { above_pixels(row, above_word); }

}  // namespace

extern const TokenKernels kScalarTokens;
const TokenKernels kScalarTokens = {norm_row, softmax_row, gelu,     tanh_values,
                                    sigmoid,  above_row,   products};

}  // namespace surge
