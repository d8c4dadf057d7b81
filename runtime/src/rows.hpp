// Operators that only move, compare or add values: one output row each, the same in all tiers.
#pragma once

#include "graph.hpp"

namespace surge {

struct RowSource {
    const float* data;
    Shape shape;
};

// In torch's order (channels first) to a row of the engine's.
void input_row(const float* input, const Shape& shape, int64_t y, float* out);
void pad_channels_row(const Node& node, const RowSource& in, int64_t y, int64_t channels,
                      float* out);
void pad_row(const Node& node, const RowSource& in, int64_t y, int64_t columns, float* out);
void subsample_row(const Node& node, const RowSource& in, int64_t y, int64_t columns, float* out);
// All values as one vector, in torch's order.
void flatten_all(const RowSource& in, float* out);
// The channels of groups in turns: the first of every group, the second of every group, ...
void shuffle_row(const RowSource& in, int64_t y, int64_t groups, float* out);
// One of several inputs into its channels of the row.
void concat_row(const RowSource& in, int64_t y, int64_t first, int64_t channels, float* out);
// Product, sum, difference, quotient, or ternary value of two inputs; the second is repeated where
// it has a single channel or pixel.
void pair_row(Op op, const RowSource& a, const RowSource& b, int64_t y, float* out);
void square_root_row(const RowSource& in, int64_t y, float* out);
void round_row(const Node& node, const RowSource& in, int64_t y, float* out);
// Of all values of a sample, summed in double precision.
float sample_mean(const RowSource& in);
float sample_variance(const RowSource& in, int64_t correction);
void absolute_row(const RowSource& in, int64_t y, float* out);
void channel_mean_row(const RowSource& in, int64_t y, float* out);

}  // namespace surge
