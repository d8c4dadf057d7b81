// What a tier of kernels computes. A tier is one file, compiled with its own instruction set; the
// scalar tier is the specification, all others must give the same bits.
//
// Only plain pointers and numbers cross this border: a template of the standard library compiled
// with AVX-512 could be merged by the linker with the copy that other files use.
#pragma once

#include <cstdint>

namespace surge {

constexpr int64_t kLanes = 16;      // filters side by side in a block of weights
constexpr int64_t kWordBits = 32;   // channels of a word of signs

// One row of output pixels of a binary convolution (one group). For every pixel p and filter f,
//     counts[p][f] = sum over k of popcount(x ^ w)
// with x = input[p * step + offsets[k]] and w = weights[f / 16][k][f % 16].
struct BinaryRow {
    const uint32_t* input;
    const int32_t* offsets;
    int64_t words;
    int64_t step;
    int64_t pixels;
    const uint32_t* weights;
    int64_t blocks;  // of kLanes filters
    int32_t* counts;
};

// The same where filter f reads word f of a pixel alone (a depthwise convolution: one channel a
// word): x = input[p * step + offsets[k] + f], whose only bit is the lowest.
struct BinaryDepthRow {
    const uint32_t* input;
    const int32_t* offsets;  // of the taps
    int64_t taps;
    int64_t step;
    int64_t pixels;
    int64_t channels;
    const uint32_t* weights;  // [ceil(channels / kLanes)][taps][kLanes]
    int32_t* counts;          // [pixels][ceil(channels / kLanes) * kLanes]
};

// How real weights are kept in memory; wider than stored only where they are read often.
enum class Weights : int { F32, F16, I8 };

// The same for real weights:
//     sum = 0; for every run r, for every value c of it: sum = fma(input, weight, sum)
// in this order, with one rounding per step, so that every tier rounds alike. A run is what lies
// side by side in the input: the channels of a tap, or of a whole row of taps.
struct FloatRow {
    const float* input;
    const int32_t* offsets;  // of every run
    int64_t runs;
    int64_t length;  // of a run
    int64_t step;
    int64_t pixels;
    Weights kind;
    const void* weights;  // [blocks][runs * length][kLanes]
    int64_t blocks;
    float* sums;  // [pixels][blocks * kLanes]
};

// The same where filter f reads channel f of a pixel alone.
struct FloatDepthRow {
    const float* input;
    const int32_t* offsets;
    int64_t taps;
    int64_t step;
    int64_t pixels;
    int64_t channels;
    const float* weights;
    float* sums;
};

// The same for inputs of 8 bits without and weights with a sign, in quads of channels:
//     sums[p][f] = sum over q and i < 4 of input[p * step + offsets[q] + i] * weights[f / 16][q][f % 16][i]
struct ByteRow {
    const uint8_t* input;
    const int32_t* offsets;
    int64_t quads;
    int64_t step;
    int64_t pixels;
    const int8_t* weights;
    int64_t blocks;
    int32_t* sums;
};

// ActivationKind in graph.hpp, in the same order.
enum class Finish : int { None, Relu, Clamp, Sign, Prelu, Rprelu, Between };

// The end of a row: t = value * scale + bias (two roundings), + residual, activation.
// The value is sums[p][c]; with counts float(counts[p][c]); with counts and base (a binary row)
// float(base[classes[p]][c] - 2 * counts[p][c]).
// Where `bits` is given, the signs are written too: 1 where t + shift >= 0, so a NaN counts as
// negative. With `span` they are 1 where base[classes[p]][c] - counts[p][c], as a number without a
// sign, is at most span[classes[p]][c], and nothing else is computed.
struct FinishRow {
    int64_t pixels;
    int64_t channels;
    const int32_t* counts;  // null for real values
    const int32_t* base;    // null for other whole numbers
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
    const float *between_low, *between_high;
    bool kept;             // whether anybody reads the output
    uint32_t* bits;        // null: none
    int64_t bits_pitch;    // words of a pixel
    const float* shift;    // null: none
    const uint32_t* span;  // null: signs come from t
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
    uint32_t* bits;
};

// Maximum of a row of windows: over the rows of the image first, then over the columns.
struct MaxRow {
    const float* const* rows;  // of the image, inside it
    int64_t count;
    int64_t width;     // of the image
    int64_t channels;
    int64_t kernel, stride, padding, dilation;  // along the columns
    int64_t pixels;
    float* column;     // room for one row of the image
    float* output;
};

// Average of a row of windows, over the taps inside the image, in the order of rows and columns.
struct AverageRow {
    const float* image;
    int64_t height, width, channels;
    int64_t top;   // row of the first tap, may be outside
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int64_t divisor;  // 0: the number of taps inside
    int64_t pixels;
    float* output;
};

// Rows of planes (channels first) to one row of pixels, as bytes: rint(x * scale + bias), in
// [0, 255], a NaN as 0; `quads` * 4 bytes a pixel, zeros behind the channels.
struct BytePixels {
    const float* input;
    int64_t plane;  // values of a plane
    int64_t pixels;
    int64_t channels;
    int64_t quads;
    const float *scale, *bias;
    uint8_t* output;
};

// Planes of a row of whole numbers from 0 up (the digits, lowest first) or of -1, 0 and 1 (where it
// is 1, then where it is -1); a NaN counts as 0.
struct PlaneBits {
    const float* input;
    int64_t pixels;  // times groups
    int64_t channels;
    int64_t words;
    int64_t planes;
    bool ternary;
    uint32_t* bits;
    int64_t pitch;  // words from one plane to the next
};

// Counts of one plane of inputs (0 or 1) and one of weights (+-1) added to sums of products:
//     sums[p][f] += factor * (ones[f] - counts[p][f])
struct PlaneSums {
    int64_t pixels;
    int64_t filters;
    const int32_t* ones;
    const int32_t* counts;
    int32_t factor;
    int32_t* sums;
};

struct Kernels {
    const char* name;
    void (*binary_row)(const BinaryRow&);
    // Both in one, without groups; row.counts is scratch space.
    void (*binary_finish)(const BinaryRow& row, const FinishRow& end);
    void (*binary_depth_row)(const BinaryDepthRow&);
    void (*float_row)(const FloatRow&);
    void (*float_depth_row)(const FloatDepthRow&);
    void (*byte_row)(const ByteRow&);
    void (*finish_row)(const FinishRow&);  // does not write bits
    void (*sign_row)(const SignRow&);
    void (*max_row)(const MaxRow&);
    void (*average_row)(const AverageRow&);
    void (*byte_pixels)(const BytePixels&);
    void (*plane_bits)(const PlaneBits&);
    void (*add_plane)(const PlaneSums&);
};

// The tier of that name, "auto" or "" for the best one; null if this machine cannot run it.
const Kernels* find_kernels(const char* name);
// Names of the tiers this machine can run, best first.
const char* kernel_names();

}  // namespace surge
