#include "arena.hpp"

#include <algorithm>

#include "error.hpp"

namespace surge {

// First fit in order of size: every buffer goes to the lowest place where nothing that lives at
// the same time is in its way.
void assign_offsets(Plan& plan) {
    std::vector<size_t> order(plan.buffers.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&plan](size_t a, size_t b) {
        return plan.buffers[a].bytes > plan.buffers[b].bytes;
    });
    std::vector<size_t> placed;  // sorted by offset
    for (size_t index : order) {
        Buffer& buffer = plan.buffers[index];
        size_t place = 0;
        for (size_t other : placed) {
            const Buffer& there = plan.buffers[other];
            if (there.last < buffer.first || buffer.last < there.first) continue;
            if (place + buffer.bytes <= there.offset) break;
            place = std::max(place, there.offset + there.bytes);
        }
        buffer.offset = place;
        plan.arena_bytes = std::max(plan.arena_bytes, place + buffer.bytes);
        if (plan.arena_bytes > kLargestArena) throw Error("the network is too large to run");
        auto behind = std::find_if(placed.begin(), placed.end(), [&](size_t other) {
            return plan.buffers[other].offset > place;
        });
        placed.insert(behind, index);
    }
}

// All weights side by side, in the order they are read.
void gather_weights(Plan& plan) {
    size_t total = 0;
    auto parts = [](Step& step) {
        std::vector<AlignedMemory*> list = {&step.binary.weights, &step.binary.base,
                                            &step.binary.span, &step.real.weights,
                                            &step.bytes.weights, &step.table};
        for (PlaneFilters& plane : step.planes) list.push_back(&plane.bits.weights);
        return list;
    };
    for (Step& step : plan.steps)
        for (AlignedMemory* part : parts(step)) total += round_up(part->bytes() + kAlignment);
    AlignedMemory all(total);
    size_t place = 0;
    for (Step& step : plan.steps)
        for (AlignedMemory* part : parts(step)) {
            part->move_into(all, place);
            place += round_up(part->bytes() + kAlignment);
        }
}

int64_t filters_of(const Step& step) {
    // Plane by plane there are counts and sums.
    int64_t planes = step.planes.empty() ? 0 : 2 * step.planes[0].bits.blocks;
    int64_t blocks = std::max({step.binary.blocks, step.real.blocks, step.bytes.blocks, planes});
    return std::max(kLanes * blocks, step.scratch_values);
}

void size_scratch(Plan& plan) {
    size_t results = 0, row = 0, pool = 0;
    for (const Step& step : plan.steps) {
        const Shape& out = plan.shape(step.output);
        if (plan.value_buffer[size_t(step.output)] < 0)
            row = std::max(row, size_t(out.w * out.c) * 4);
        if (step.node < 0) continue;
        if (plan.node(step).op == Op::MaxPool) {
            const Shape& in = plan.shape(plan.node(step).inputs[0]);
            size_t rows = 1 + (step.pulls >= 0 ? size_t(plan.node(step).window.kernel[0]) : 0);
            size_t one = round_up(size_t(in.w * in.c) * 4);
            if (rows > kLargestArena / one) throw Error("the network is too large to run");
            pool = std::max(pool, rows * one);
            plan.pool_rows =
                std::max(plan.pool_rows, size_t(std::min(plan.node(step).window.kernel[0], in.h)));
        }
        if (!works_by_rows(plan.node(step))) continue;
        results = std::max(results, size_t(step.chunk * filters_of(step)) * 4);
    }
    plan.row_offset = round_up(results);
    plan.pool_offset = plan.row_offset + round_up(row);
    plan.scratch_bytes = plan.pool_offset + round_up(pool);
    if (plan.scratch_bytes > kLargestArena) throw Error("the network is too large to run");
}

}  // namespace surge
