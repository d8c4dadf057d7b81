// Where everything lives: values in one block of memory, weights in another.
#pragma once

#include "plan.hpp"

namespace surge {

constexpr size_t kLargestArena = size_t(1) << 31;

// Whether an operator makes its rows one by one, in any order, so that they need no memory of their
// own where they are only needed as bits.
inline bool works_by_rows(const Node& maker) {
    switch (maker.op) {
        case Op::Round:
        case Op::Ternary:
        case Op::Add:
        case Op::Above:
        case Op::Softmax:
        case Op::Gelu:
        case Op::Tanh:
        case Op::Sigmoid: return true;
        default: return maker.has_epilogue();
    }
}

// Give every buffer its place; two that are never needed at the same time may share bytes.
void assign_offsets(Plan& plan);
void gather_weights(Plan& plan);
void size_scratch(Plan& plan);
// Results of a kernel per pixel.
int64_t filters_of(const Step& step);

}  // namespace surge
