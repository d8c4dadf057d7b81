// Rows of tokens: norms, softmax, smooth activations, and products of two computed values. As in
// kernels.hpp only plain pointers cross this border, and every tier gives the same bits: all of
// them compile the same loops, whose sums run in sixteen lanes, in a fixed order.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace surge {

// (x - mean) / sqrt(variance + eps) of every pixel, over its channels.
struct NormRow {
    const float* input;
    int64_t pixels;
    int64_t channels;
    float eps;
    float* output;
};

// exp(t - max t) / sum, t = x + term, of every pixel over its channels; `term` is null or has one
// value per channel. A NaN counts as far below.
struct SoftmaxRow {
    const float* input;
    const float* term;
    int64_t pixels;
    int64_t channels;
    float* output;
};

// Bits: 1 where x + shift > limit. The layout of SignRow.
struct AboveRow {
    const float* input;
    int64_t pixels;
    int64_t groups;
    int64_t channels;
    int64_t words;
    const float* shift;  // null: none
    float limit;
    uint32_t* bits;
};

// Counts of differing bits become sums of products: counts[p][f] = base[f] - factor * counts[p][f].
struct ProductRow {
    int64_t pixels;
    int64_t filters;
    const int32_t* base;
    int32_t factor;
    int32_t* counts;
};

struct TokenKernels {
    void (*norm_row)(const NormRow&);
    void (*softmax_row)(const SoftmaxRow&);
    void (*gelu)(const float* input, int64_t count, float* output);
    void (*tanh)(const float* input, int64_t count, float* output);
    void (*sigmoid)(const float* input, int64_t count, float* output);
    void (*above_row)(const AboveRow&);
    void (*products)(const ProductRow&);
};

// Those that belong to a tier.
const TokenKernels& token_kernels(const Kernels& tier);

}  // namespace surge
