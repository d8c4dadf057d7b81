#include "plan.hpp"

#include <algorithm>

#include "error.hpp"
#include "kernels.hpp"

namespace surge {
namespace {

constexpr size_t kLargestArena = size_t(1) << 31;
constexpr int64_t kCacheValues = 8192;  // kernel results that stay in the first-level cache

class Planner {
   public:
    explicit Planner(const Container& file) : file_(file) {}

    Plan make() {
        plan_.graph = read_graph(file_);
        make_steps();
        find_uses();
        place_sinks();
        place_values();
        place_padded();
        assign_offsets();
        for (Step& step : plan_.steps) prepare(step);
        size_scratch();
        return std::move(plan_);
    }

   private:
    const Shape& shape(int value) const { return plan_.graph.values[size_t(value)]; }
    const Node& node(const Step& step) const { return plan_.graph.nodes[size_t(step.node)]; }

    void make_steps() {
        plan_.steps.emplace_back();
        for (size_t i = 0; i < plan_.graph.nodes.size(); ++i) {
            Step step;
            step.node = int(i);
            step.output = plan_.graph.nodes[i].output;
            plan_.steps.push_back(std::move(step));
        }
    }

    // Values are numbered in the order they are made: value v comes from step v.
    void find_uses() {
        last_float_use_.assign(plan_.graph.values.size(), -1);
        for (size_t i = 1; i < plan_.steps.size(); ++i) {
            const Node& reader = node(plan_.steps[i]);
            if (reader.op != Op::BinaryConv)
                for (int value : reader.inputs) last_float_use_[size_t(value)] = int(i);
            if (reader.residual >= 0) last_float_use_[size_t(reader.residual)] = int(i);
        }
        last_float_use_[size_t(plan_.graph.output)] = int(plan_.steps.size());
    }

    int add_buffer(size_t bytes, int first, int last) {
        Buffer buffer;
        buffer.bytes = round_up(bytes);
        buffer.first = first;
        buffer.last = last;
        plan_.buffers.push_back(buffer);
        return int(plan_.buffers.size()) - 1;
    }

    void place_sinks() {
        for (size_t i = 1; i < plan_.steps.size(); ++i) {
            const Node& reader = node(plan_.steps[i]);
            if (reader.op != Op::BinaryConv) continue;
            int sink = find_sink(reader);
            plan_.steps[i].signs = sink;
            Buffer& buffer = plan_.buffers[size_t(plan_.sinks[size_t(sink)].buffer)];
            buffer.last = std::max(buffer.last, int(i));
        }
    }

    int find_sink(const Node& reader) {
        SignSink sink;
        sink.value = reader.inputs[0];
        const Shape& in = shape(sink.value);
        sink.groups = reader.groups;
        sink.channels = in.c / reader.groups;
        sink.words = (sink.channels + 63) / 64;
        std::copy(reader.window.padding, reader.window.padding + 2, sink.padding);
        sink.columns = in.w + 2 * sink.padding[1];
        sink.shift = reader.shift;
        for (size_t i = 0; i < plan_.sinks.size(); ++i) {
            const SignSink& other = plan_.sinks[i];
            if (other.value == sink.value && other.groups == sink.groups &&
                std::equal(sink.padding, sink.padding + 2, other.padding) &&
                other.shift == sink.shift)
                return int(i);
        }
        size_t words = size_t(in.h + 2 * sink.padding[0]) * size_t(sink.row_words());
        if (words > kLargestArena / 8) throw Error("\"" + reader.name + "\" is too large to run");
        sink.buffer = add_buffer(words * 8, sink.value, sink.value);
        int index = int(plan_.sinks.size());
        plan_.steps[size_t(sink.value)].sinks.push_back(index);
        plan_.sinks.push_back(std::move(sink));
        return index;
    }

    void place_values() {
        plan_.value_buffer.assign(plan_.graph.values.size(), -1);
        for (size_t v = 0; v < plan_.graph.values.size(); ++v) {
            const Step& step = plan_.steps[v];
            bool by_rows = step.node >= 0 && node(step).has_epilogue();
            if (last_float_use_[v] < 0 && by_rows) continue;
            int last = std::max(last_float_use_[v], int(v));
            int reused = by_rows ? reusable(step, int(v)) : -1;
            if (reused >= 0) {
                plan_.buffers[size_t(reused)].last = last;
                plan_.value_buffer[v] = reused;
            } else {
                size_t bytes = size_t(shape(int(v)).elements()) * 4;
                plan_.value_buffer[v] = add_buffer(bytes, int(v), last);
            }
        }
    }

    // The buffer of a residual (or of an affine operator's input) that nobody reads afterwards:
    // the result takes its place, element by element.
    int reusable(const Step& step, int index) const {
        const Node& maker = node(step);
        int candidate = maker.residual >= 0      ? maker.residual
                        : maker.op == Op::Affine ? maker.inputs[0]
                                                 : -1;
        if (candidate < 0 || last_float_use_[size_t(candidate)] != index) return -1;
        // A real convolution reads neighbours, so its input must survive.
        bool windowed = maker.op == Op::Conv && maker.inputs[0] == candidate;
        bool other_input = maker.op == Op::Affine && maker.residual >= 0 &&
                           maker.inputs[0] == maker.residual;
        return windowed || other_input ? -1 : plan_.value_buffer[size_t(candidate)];
    }

    void place_padded() {
        for (size_t i = 1; i < plan_.steps.size(); ++i) {
            const Node& reader = node(plan_.steps[i]);
            const int64_t* padding = reader.window.padding;
            if (reader.op != Op::Conv || (padding[0] == 0 && padding[1] == 0)) continue;
            const Shape& in = shape(reader.inputs[0]);
            int64_t elements = (in.h + 2 * padding[0]) * (in.w + 2 * padding[1]) * in.c;
            plan_.steps[i].padded = add_buffer(size_t(elements) * 4, int(i), int(i));
        }
    }

    // First fit in order of size: every buffer goes to the lowest place where nothing that lives at
    // the same time is in its way.
    void assign_offsets() {
        std::vector<size_t> order(plan_.buffers.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
            return plan_.buffers[a].bytes > plan_.buffers[b].bytes;
        });
        std::vector<size_t> placed;  // sorted by offset
        for (size_t index : order) {
            Buffer& buffer = plan_.buffers[index];
            size_t place = 0;
            for (size_t other : placed) {
                const Buffer& there = plan_.buffers[other];
                if (there.last < buffer.first || buffer.last < there.first) continue;
                if (place + buffer.bytes <= there.offset) break;
                place = std::max(place, there.offset + there.bytes);
            }
            buffer.offset = place;
            plan_.arena_bytes = std::max(plan_.arena_bytes, place + buffer.bytes);
            if (plan_.arena_bytes > kLargestArena) throw Error("the network is too large to run");
            auto behind = std::find_if(placed.begin(), placed.end(), [&](size_t other) {
                return plan_.buffers[other].offset > place;
            });
            placed.insert(behind, index);
        }
    }

    void prepare(Step& step) {
        if (step.node < 0) return;
        const Node& op = node(step);
        const Shape &in = shape(op.inputs[0]), &out = shape(step.output);
        if (op.op == Op::BinaryConv) {
            step.binary = make_binary(file_, op, in, out);
            const SignSink& sink = plan_.sinks[size_t(step.signs)];
            add_offsets(step, op.window, sink.row_words(), sink.pixel_words(), sink.words);
            step.chunk = chunk_of(step.binary.blocks * kBinaryLanes, out.w);
        } else if (op.op == Op::Conv) {
            step.real = make_float(file_, op, in, out);
            int64_t columns = in.w + 2 * op.window.padding[1];
            add_offsets(step, op.window, columns * in.c, in.c, 1);
            step.chunk = chunk_of(step.real.blocks * kFloatLanes, out.w);
        }
    }

    static void add_offsets(Step& step, const Window& window, int64_t row, int64_t pixel,
                            int64_t words) {
        for (int64_t y = 0; y < window.kernel[0]; ++y)
            for (int64_t x = 0; x < window.kernel[1]; ++x)
                for (int64_t w = 0; w < words; ++w)
                    step.offsets.push_back(int32_t(y * window.dilation[0] * row +
                                                   x * window.dilation[1] * pixel + w));
    }

    static int64_t chunk_of(int64_t filters, int64_t columns) {
        int64_t pixels = std::max<int64_t>(1, kCacheValues / filters / 28) * 28;
        return std::min(pixels, columns);
    }

    void size_scratch() {
        size_t results = 0, row = 0;
        for (const Step& step : plan_.steps) {
            if (step.node < 0 || !node(step).has_epilogue()) continue;
            int64_t filters = std::max(step.binary.blocks * kBinaryLanes,
                                       step.real.blocks * kFloatLanes);
            results = std::max(results, size_t(step.chunk * filters) * 4);
            const Shape& out = shape(step.output);
            row = std::max(row, size_t(out.w * out.c) * 4);
        }
        plan_.row_offset = round_up(results);
        plan_.scratch_bytes = plan_.row_offset + round_up(row);
        if (plan_.scratch_bytes > kLargestArena) throw Error("the network is too large to run");
    }

    const Container& file_;
    Plan plan_;
    std::vector<int> last_float_use_;
};

}  // namespace

Plan make_plan(const Container& file) { return Planner(file).make(); }

}  // namespace surge
