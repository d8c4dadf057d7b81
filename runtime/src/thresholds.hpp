// Where only the sign of a value is wanted, whole numbers are compared instead.
#pragma once

#include <cstdint>
#include <vector>

#include "graph.hpp"

namespace surge {

// For every channel the sums of products, within [-depth, depth], for which the epilogue of a
// binary convolution plus `shift` (empty: none) is not negative, or above `limit` where one is
// given: lowest <= sum <= highest. Both stay empty where the epilogue is not monotone.
void find_thresholds(const Node& node, const std::vector<float>& shift, const float* limit,
                     int64_t depth, std::vector<int32_t>& lowest, std::vector<int32_t>& highest);

}  // namespace surge
