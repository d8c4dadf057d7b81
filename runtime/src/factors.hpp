// The second factor of a product of two values, in the order of weights; and tables of rows.
// Values are only moved: the same in all tiers.
#pragma once

#include "plan.hpp"

namespace surge {

// What is multiplied with one row of the first factor counts as filters, those of every head
// padded to whole blocks: the tokens of the second factor, or its channels.
int64_t factor_filters(const Node& node, const Shape& second);
// Words of a filter: over the channels of a head, or over the tokens.
int64_t factor_words(const Node& node, const Shape& second);
// Memory for all heads: [heads][blocks][words][kLanes], then what their sums start from,
// [heads][filters].
size_t factor_bytes(const Node& node, const Shape& second);

// Arrange the bits of the second factor ([tokens][words of a pixel]) like that.
void arrange_factor(const Node& node, const Shape& second, const uint32_t* bits,
                    int64_t pixel_words, uint32_t* packed);
// Where the sums of the products of a head start.
const int32_t* factor_base(const Node& node, const Shape& second, const uint32_t* packed,
                           int64_t head);

// The same of a product of real numbers: [heads][blocks][depth][kLanes], as FloatRow wants them.
int64_t factor_depth(const Node& node, const Shape& second);
size_t real_factor_bytes(const Node& node, const Shape& second);
void arrange_real_factor(const Node& node, const Shape& second, const float* values,
                         float* packed);

// A table of bits as the file has it, of numbers as fp32, each row times its scale; of rows to be
// added only those that are.
AlignedMemory make_table(const Container& file, const Node& node, const Shape& in,
                         const Shape& out);
// One row of a table of bits, as +-scale.
void bits_row(const uint8_t* table, int64_t row, float scale, int64_t channels, float* out);

}  // namespace surge
