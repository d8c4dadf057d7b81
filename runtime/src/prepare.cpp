// Make a step ready to run: its weights in the kernels' order, and the offsets of its taps.
#include <algorithm>

#include "arena.hpp"
#include "factors.hpp"
#include "thresholds.hpp"

namespace surge {
namespace {

constexpr int64_t kCacheValues = 8192;  // kernel results that stay in the first-level cache
constexpr int64_t kJoinedPixels = 48;   // of joined rows

void add_offsets(Step& step, const Window& window, int64_t row, int64_t pixel,
                        int64_t unit, int64_t words) {
    for (int64_t y = 0; y < window.kernel[0]; ++y)
        for (int64_t x = 0; x < window.kernel[1]; ++x)
            for (int64_t w = 0; w < words; ++w)
                step.offsets.push_back(int32_t(y * window.dilation[0] * row +
                                               x * window.dilation[1] * pixel + w * unit));
}

// A 1x1 convolution has no rows: short ones are joined, so that weights are read less often.
void join_rows(const Plan& plan, Step& step, const Node& op, const Shape& out) {
    const Window& window = op.window;
    bool pointwise = window.taps() == 1 && window.stride[0] == 1 && window.stride[1] == 1 &&
                     window.padding[0] == 0 && window.padding[1] == 0;
    if (!pointwise || step.pulled || step.padded >= 0 ||
        plan.value_buffer[size_t(step.output)] < 0)
        return;
    for (int64_t rows = 1; rows <= out.h; ++rows)
        if (out.h % rows == 0 && out.w * rows >= kJoinedPixels) {
            step.joined = rows;
            return;
        }
    step.joined = out.h;
}

// lowest <= base - 2 * count <= highest as a range of counts: one comparison decides.
void bound_counts(BinaryFilters& filters, const std::vector<int32_t>& lowest,
                  const std::vector<int32_t>& highest) {
    constexpr int64_t kBeyond = int64_t(1) << 30;  // any sum
    filters.span = AlignedMemory(filters.base.bytes());
    int32_t* base = filters.base.as<int32_t>();
    uint32_t* span = filters.span.as<uint32_t>();
    int64_t classes = int64_t(filters.base.bytes()) / 4 / filters.base_pitch;
    for (int64_t i = 0; i < classes; ++i, base += filters.base_pitch, span += filters.base_pitch)
        for (size_t c = 0; c < lowest.size(); ++c) {
            int64_t most = (base[c] - std::max<int64_t>(lowest[c], -kBeyond)) >> 1;
            int64_t least = (base[c] - std::min<int64_t>(highest[c], kBeyond) + 1) >> 1;
            base[c] = most < least ? -1 : int32_t(most);
            span[c] = most < least ? 0 : uint32_t(most - least);
        }
}

// Without groups, the kernel that makes the sums also writes bits: signs of the values, or, where
// nobody wants these, whatever whole numbers decide.
void choose_fused(const Plan& plan, Step& step, const Node& op, int64_t depth) {
    if (op.groups != 1) return;
    bool alone = step.sinks.size() == 1 && op.residual < 0 && !step.pulled &&
                 plan.value_buffer[size_t(step.output)] < 0;
    for (int index : step.sinks) {
        const SignSink& sink = plan.sinks[size_t(index)];
        bool above = sink.rule == BitRule::Above;
        if (sink.groups != 1 || (!above && sink.rule != BitRule::Sign)) continue;
        std::vector<int32_t> lowest, highest;
        if (alone)
            find_thresholds(op, sink.shift, above ? &sink.limit : nullptr, depth, lowest, highest);
        if (!lowest.empty()) bound_counts(step.binary, lowest, highest);
        if (above && lowest.empty()) continue;
        step.fused = index;
        return;
    }
}

int64_t chunk_of(int64_t filters, int64_t columns) {
    if (filters == 0) return columns;
    int64_t pixels = std::max<int64_t>(1, kCacheValues / filters / 84) * 84;
    return std::min(pixels, columns);
}

}  // namespace

void prepare(const Container& file, Plan& plan, Step& step) {
    if (step.node < 0) return;
    const Node& op = plan.node(step);
    const Shape &in = plan.shape(op.inputs[0]), &out = plan.shape(step.output);
    int64_t columns = in.w + 2 * op.window.padding[1];
    bool convolves = op.op == Op::BinaryConv || op.op == Op::Conv;
    step.depthwise = convolves && !step.planar && is_depthwise(op, in, out);
    if (op.op == Op::BinaryConv) {
        step.binary = make_binary(file, op, in, out);
        const SignSink& sink = plan.sinks[size_t(step.signs)];
        add_offsets(step, op.window, sink.row_words(), sink.pixel_words(), 1, sink.words);
        choose_fused(plan, step, op, in.c * op.window.taps());
    } else if (step.planar) {
        for (int64_t plane = 0; plane < op.weight_bits; ++plane)
            step.planes.push_back(make_plane(file, op, in, out, plane));
        const SignSink& sink = plan.sinks[size_t(step.signs)];
        add_offsets(step, op.window, sink.row_words(), sink.pixel_words(), 1, sink.words);
    } else if (op.op == Op::Conv && op.by_bytes()) {
        step.bytes = make_bytes(file, op, in, out);
        int64_t quads = (in.c + 3) / 4;
        add_offsets(step, op.window, columns * quads * 4, quads * 4, 4, quads);
    } else if (op.op == Op::Conv) {
        step.real = make_float(file, op, in, out);
        Window window = op.window;
        step.length = in.c / op.groups;
        if (window.dilation[1] == 1 && op.groups == 1) {
            // Taps side by side are one run of values.
            step.length *= window.kernel[1];
            window.kernel[1] = 1;
        }
        add_offsets(step, window, columns * in.c, in.c, 1, 1);
        join_rows(plan, step, op, out);
    } else if (op.op == Op::BinaryMatmul) {
        int64_t words = (op.transposed ? in.c / op.heads : in.c) + kWordBits - 1;
        for (int64_t w = 0; w < words / kWordBits; ++w) step.offsets.push_back(int32_t(w));
        step.scratch_values = factor_filters(op, plan.shape(op.inputs[1]));
    } else if (op.op == Op::Matmul) {
        step.offsets.push_back(0);
        step.length = factor_depth(op, plan.shape(op.inputs[1]));
        step.scratch_values = factor_filters(op, plan.shape(op.inputs[1]));
    } else if (op.op == Op::LayerNorm) {
        step.scratch_values = out.c;
    } else if (op.op == Op::Embedding || op.op == Op::AddRows ||
               op.op == Op::PrependRows) {
        step.table = make_table(file, op, in, out);
    }
    step.chunk = chunk_of(filters_of(step), out.w * step.joined);
}

}  // namespace surge
