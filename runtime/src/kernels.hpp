// What a tier of kernels computes. A tier is one file, compiled with its own instruction set; the
// scalar tier is the specification, all others must give the same bits.
//
// Only plain pointers and numbers cross this border: a template of the standard library compiled
// with AVX-512 could be merged by the linker with the copy that other files use.
#pragma once

#include <cstdint>

namespace surge {

constexpr int64_t kBinaryLanes = 8;  // filters side by side in a binary weight
constexpr int64_t kFloatLanes = 16;  // filters side by side in a real weight

// One row of output pixels of a binary convolution (one group). For every pixel p and filter f,
//     counts[p][f] = sum over k of popcount(x ^ w)
// with x = input[p * step + offsets[k]] and w = weights[f / 8][k][f % 8].
struct BinaryRow {
    const uint64_t* input;
    const int32_t* offsets;
    int64_t words;
    int64_t step;
    int64_t pixels;
    const uint64_t* weights;
    int64_t blocks;  // of kBinaryLanes filters
    int32_t* counts;
};

// The same for real weights:
//     sum = 0; for every tap t, for every channel c: sum = fma(input, weight, sum)
// in this order, with one rounding per step, so that every tier rounds alike.
struct FloatRow {
    const float* input;
    const int32_t* offsets;  // of every tap
    int64_t taps;
    int64_t channels;
    int64_t step;
    int64_t pixels;
    const float* weights;  // [blocks][taps * channels][kFloatLanes]
    int64_t blocks;
    float* sums;  // [pixels][blocks * kFloatLanes]
};

// ActivationKind in graph.hpp, in the same order.
enum class Finish : int { None, Relu, Clamp, Sign, Prelu, Rprelu };

// The end of a row: t = value * scale + bias (two roundings), + residual, activation.
// The value is sums[p][c], or, of a binary row, float(base[classes[p]][c] - 2 * counts[p][c]).
struct FinishRow {
    int64_t pixels;
    int64_t channels;
    const int32_t* counts;  // null for real values
    const int32_t* base;
    const int32_t* classes;
    int64_t base_pitch;
    const float* sums;
    int64_t value_pitch;
    const float* scale;
    const float* bias;
    const float* residual;  // null: none; may be the output itself
    float* output;
    int64_t output_pitch;  // also of the residual
    Finish kind;
    float low, high;
    const float *slope, *shift_in, *shift_out;
};

// Signs of a row as bits: 1 where x + shift >= 0, so a NaN counts as negative. Every pixel has
// groups * words words; bits beyond a group's channels stay 0.
struct SignRow {
    const float* input;
    int64_t pixels;
    int64_t groups;
    int64_t channels;  // of a group
    int64_t words;     // of a group
    const float* shift;  // null: none
    uint64_t* bits;
};

struct Kernels {
    const char* name;
    void (*binary_row)(const BinaryRow&);
    void (*float_row)(const FloatRow&);
    void (*finish_row)(const FinishRow&);
    void (*sign_row)(const SignRow&);
};

// The tier of that name, "auto" or "" for the best one; null if this machine cannot run it.
const Kernels* find_kernels(const char* name);
// Names of the tiers this machine can run, best first.
const char* kernel_names();

}  // namespace surge
