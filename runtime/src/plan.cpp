#include "plan.hpp"

#include <algorithm>

#include "error.hpp"
#include "kernels.hpp"
#include "thresholds.hpp"

namespace surge {
namespace {

constexpr size_t kLargestArena = size_t(1) << 31;
constexpr int64_t kCacheValues = 8192;  // kernel results that stay in the first-level cache
constexpr int64_t kJoinedPixels = 48;   // of joined rows
constexpr int64_t kMostPlanes = 8;      // pairs of planes of a convolution

class Planner {
   public:
    explicit Planner(const Container& file) : file_(file) {}

    Plan make() {
        plan_.graph = read_graph(file_);
        make_steps();
        find_uses();
        place_sinks();
        choose_direct();
        choose_pulled();
        place_values();
        place_padded();
        assign_offsets();
        for (Step& step : plan_.steps) prepare(step);
        gather_weights();
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
        for (Step& step : plan_.steps) step.planar = step.node >= 0 && by_planes(node(step));
    }

    const Node* maker(int value) const {
        return value == 0 ? nullptr : &plan_.graph.nodes[size_t(value) - 1];
    }

    // Planes of a value that is a whole number from 0 up, or -1, 0 or 1; 0 if it is neither.
    int64_t planes_of(int value, BitRule& rule) const {
        const Node* made = maker(value);
        rule = made && made->op == Op::Ternary ? BitRule::Ternary : BitRule::Digits;
        if (made && made->op == Op::Ternary) return 2;
        const Node* limits = made && made->op == Op::Round ? maker(made->inputs[0]) : nullptr;
        if (!limits || limits->activation.kind != ActivationKind::Clamp ||
            limits->activation.low < 0.0f || limits->activation.high > 1.0f)
            return 0;
        int64_t planes = 1;
        while (made->levels >> planes) ++planes;
        return planes;
    }

    // Worth it while there are fewer pairs of planes than a real product costs, and exact while
    // all sums are whole numbers that fp32 can hold.
    bool by_planes(const Node& reader) const {
        if (reader.op != Op::Conv || !reader.weight_bits || !reader.offset.empty()) return false;
        BitRule rule;
        int64_t planes = planes_of(reader.inputs[0], rule);
        int64_t depth = reader.window.taps() * (shape(reader.inputs[0]).c / reader.groups);
        bool exact = depth < (int64_t(1) << 24) >> (planes + reader.weight_bits);
        return planes > 0 && planes * reader.weight_bits <= kMostPlanes && exact;
    }

    static bool reads_bits(const Step& step, const Node& reader) {
        return reader.op == Op::BinaryConv || step.planar;
    }

    // Values are numbered in the order they are made: value v comes from step v.
    void find_uses() {
        last_float_use_.assign(plan_.graph.values.size(), -1);
        float_uses_.assign(plan_.graph.values.size(), 0);
        for (size_t i = 1; i < plan_.steps.size(); ++i) {
            const Node& reader = node(plan_.steps[i]);
            if (!reads_bits(plan_.steps[i], reader))
                for (int value : reader.inputs) use(value, int(i));
            if (reader.residual >= 0) use(reader.residual, int(i));
        }
        use(plan_.graph.output, int(plan_.steps.size()));
    }

    void use(int value, int step) {
        last_float_use_[size_t(value)] = step;
        ++float_uses_[size_t(value)];
    }

    // A convolution of the network's input reads its padded copy; if nobody else wants the input,
    // the copy is the only one. Bytes are always written by the first step.
    void choose_direct() {
        if (plan_.graph.input_dims.size() != 3) return;
        bool others = !plan_.steps[0].sinks.empty() || plan_.graph.output == 0;
        std::vector<int> readers, bytes;
        for (size_t i = 1; i < plan_.steps.size(); ++i) {
            const Node& reader = node(plan_.steps[i]);
            if (reader.residual == 0) others = true;
            for (int value : reader.inputs)
                if (value == 0) {
                    (reader.op == Op::Conv && reader.by_bytes() ? bytes : readers)
                        .push_back(int(i));
                    others = others || reader.op != Op::Conv;
                }
        }
        plan_.direct = bytes;
        if (!others && readers.size() <= 1) {
            plan_.direct.insert(plan_.direct.end(), readers.begin(), readers.end());
            input_in_passing_ = true;
        }
    }

    // A maximum pool that is the only reader of a convolution asks for its rows when it needs
    // them, so the large image in between never leaves the cache.
    void choose_pulled() {
        for (size_t i = 1; i < plan_.steps.size(); ++i) {
            Step& step = plan_.steps[i];
            if (node(step).op != Op::MaxPool || node(step).window.dilation[0] != 1) continue;
            int value = node(step).inputs[0];
            Step& source = plan_.steps[size_t(value)];
            bool alone = value > 0 && float_uses_[size_t(value)] == 1 && source.sinks.empty();
            if (!alone || !node(source).has_epilogue()) continue;
            step.pulls = value;
            source.pulled = true;
            // What the source reads is read later than its own place says.
            delay(node(source), int(i));
        }
    }

    void delay(const Node& source, int step) {
        auto later = [&](int value) {
            last_float_use_[size_t(value)] = std::max(last_float_use_[size_t(value)], step);
        };
        const Step& place = plan_.steps[size_t(source.output)];
        if (place.signs < 0) later(source.inputs[0]);
        if (source.residual >= 0) later(source.residual);
        if (place.signs < 0) return;
        Buffer& signs = plan_.buffers[size_t(plan_.sinks[size_t(place.signs)].buffer)];
        signs.last = std::max(signs.last, step);
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
            if (!reads_bits(plan_.steps[i], reader)) continue;
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
        sink.words = (sink.channels + kWordBits - 1) / kWordBits;
        std::copy(reader.window.padding, reader.window.padding + 2, sink.padding);
        sink.rows = in.h + 2 * sink.padding[0];
        sink.columns = in.w + 2 * sink.padding[1];
        sink.shift = reader.shift;
        if (reader.op == Op::Conv) sink.planes = planes_of(sink.value, sink.rule);
        for (size_t i = 0; i < plan_.sinks.size(); ++i) {
            const SignSink& other = plan_.sinks[i];
            if (other.value == sink.value && other.groups == sink.groups &&
                other.rule == sink.rule &&
                std::equal(sink.padding, sink.padding + 2, other.padding) &&
                other.shift == sink.shift)
                return int(i);
        }
        size_t words = size_t(sink.planes) * size_t(sink.plane_words());
        if (words > kLargestArena / 4) throw Error("\"" + reader.name + "\" is too large to run");
        sink.buffer = add_buffer(words * 4, sink.value, sink.value);
        int index = int(plan_.sinks.size());
        plan_.steps[size_t(sink.value)].sinks.push_back(index);
        plan_.sinks.push_back(std::move(sink));
        return index;
    }

    static bool works_by_rows(const Node& maker) {
        return maker.has_epilogue() || maker.op == Op::Round || maker.op == Op::Ternary;
    }

    void place_values() {
        plan_.value_buffer.assign(plan_.graph.values.size(), -1);
        for (size_t v = 0; v < plan_.graph.values.size(); ++v) {
            const Step& step = plan_.steps[v];
            bool by_rows = step.node >= 0 && works_by_rows(node(step));
            if ((last_float_use_[v] < 0 && by_rows) || step.pulled) continue;
            if (v == 0 && input_in_passing_) continue;
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
        if (candidate == 0 && plan_.value_buffer[0] < 0) return -1;
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
            bool direct = std::find(plan_.direct.begin(), plan_.direct.end(), int(i)) !=
                          plan_.direct.end();
            if (reader.op != Op::Conv || plan_.steps[i].planar) continue;
            if ((padding[0] == 0 && padding[1] == 0 && !direct)) continue;
            const Shape& in = shape(reader.inputs[0]);
            int64_t pixels = (in.h + 2 * padding[0]) * (in.w + 2 * padding[1]);
            // A kernel may read a whole quad at the last channel.
            int64_t bytes = reader.by_bytes() ? (in.c + 3) / 4 * 4 : in.c * 4;
            int last = int(i);
            for (size_t k = i; k < plan_.steps.size(); ++k)
                if (plan_.steps[k].pulls == int(i)) last = int(k);
            plan_.steps[i].padded = add_buffer(size_t(pixels * bytes), direct ? 0 : int(i), last);
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
        int64_t columns = in.w + 2 * op.window.padding[1];
        if (op.op == Op::BinaryConv) {
            step.binary = make_binary(file_, op, in, out);
            const SignSink& sink = plan_.sinks[size_t(step.signs)];
            add_offsets(step, op.window, sink.row_words(), sink.pixel_words(), 1, sink.words);
            choose_fused(step, op, in.c * op.window.taps());
        } else if (step.planar) {
            for (int64_t plane = 0; plane < op.weight_bits; ++plane)
                step.planes.push_back(make_plane(file_, op, in, out, plane));
            const SignSink& sink = plan_.sinks[size_t(step.signs)];
            add_offsets(step, op.window, sink.row_words(), sink.pixel_words(), 1, sink.words);
        } else if (op.op == Op::Conv && op.by_bytes()) {
            step.bytes = make_bytes(file_, op, in, out);
            int64_t quads = (in.c + 3) / 4;
            add_offsets(step, op.window, columns * quads * 4, quads * 4, 4, quads);
        } else if (op.op == Op::Conv) {
            step.real = make_float(file_, op, in, out);
            Window window = op.window;
            step.length = in.c / op.groups;
            if (window.dilation[1] == 1 && op.groups == 1) {
                // Taps side by side are one run of values.
                step.length *= window.kernel[1];
                window.kernel[1] = 1;
            }
            add_offsets(step, window, columns * in.c, in.c, 1, 1);
            join_rows(step, op, out);
        }
        step.chunk = chunk_of(filters_of(step), out.w * step.joined);
    }

    // All weights side by side, in the order they are read.
    void gather_weights() {
        size_t total = 0;
        auto parts = [](Step& step) {
            std::vector<AlignedMemory*> list = {&step.binary.weights, &step.binary.base,
                                                &step.real.weights, &step.bytes.weights};
            for (PlaneFilters& plane : step.planes) list.push_back(&plane.bits.weights);
            return list;
        };
        for (Step& step : plan_.steps)
            for (AlignedMemory* part : parts(step)) total += round_up(part->bytes() + kAlignment);
        AlignedMemory all(total);
        size_t place = 0;
        for (Step& step : plan_.steps)
            for (AlignedMemory* part : parts(step)) {
                part->move_into(all, place);
                place += round_up(part->bytes() + kAlignment);
            }
    }

    static int64_t filters_of(const Step& step) {
        // Plane by plane there are counts and sums.
        int64_t planes = step.planes.empty() ? 0 : 2 * step.planes[0].bits.blocks;
        return kLanes * std::max({step.binary.blocks, step.real.blocks, step.bytes.blocks, planes});
    }

    static void add_offsets(Step& step, const Window& window, int64_t row, int64_t pixel,
                            int64_t unit, int64_t words) {
        for (int64_t y = 0; y < window.kernel[0]; ++y)
            for (int64_t x = 0; x < window.kernel[1]; ++x)
                for (int64_t w = 0; w < words; ++w)
                    step.offsets.push_back(int32_t(y * window.dilation[0] * row +
                                                   x * window.dilation[1] * pixel + w * unit));
    }

    // A 1x1 convolution has no rows: short ones are joined, so that weights are read less often.
    void join_rows(Step& step, const Node& op, const Shape& out) const {
        const Window& window = op.window;
        bool pointwise = window.taps() == 1 && window.stride[0] == 1 && window.stride[1] == 1 &&
                         window.padding[0] == 0 && window.padding[1] == 0;
        if (!pointwise || step.pulled || step.padded >= 0 ||
            plan_.value_buffer[size_t(step.output)] < 0)
            return;
        for (int64_t rows = 1; rows <= out.h; ++rows)
            if (out.h % rows == 0 && out.w * rows >= kJoinedPixels) {
                step.joined = rows;
                return;
            }
        step.joined = out.h;
    }

    // Without groups, the kernel that makes the sums also writes bits.
    void choose_fused(Step& step, const Node& op, int64_t depth) {
        if (op.groups != 1) return;
        for (int index : step.sinks)
            if (plan_.sinks[size_t(index)].groups == 1) {
                step.fused = index;
                break;
            }
        bool only_bits = step.fused >= 0 && step.sinks.size() == 1 && op.residual < 0 &&
                         plan_.value_buffer[size_t(step.output)] < 0 && !step.pulled;
        if (only_bits)
            find_thresholds(op, plan_.sinks[size_t(step.fused)].shift, depth, step.lowest,
                            step.highest);
    }

    static int64_t chunk_of(int64_t filters, int64_t columns) {
        if (filters == 0) return columns;
        int64_t pixels = std::max<int64_t>(1, kCacheValues / filters / 84) * 84;
        return std::min(pixels, columns);
    }

    void size_scratch() {
        size_t results = 0, row = 0, pool = 0;
        for (const Step& step : plan_.steps) {
            if (step.node < 0) continue;
            const Shape& out = shape(step.output);
            if (node(step).op == Op::MaxPool) {
                const Shape& in = shape(node(step).inputs[0]);
                size_t rows = 1 + (step.pulls >= 0 ? size_t(node(step).window.kernel[0]) : 0);
                size_t one = round_up(size_t(in.w * in.c) * 4);
                if (rows > kLargestArena / one) throw Error("the network is too large to run");
                pool = std::max(pool, rows * one);
                plan_.pool_rows =
                    std::max(plan_.pool_rows, size_t(std::min(node(step).window.kernel[0], in.h)));
            }
            if (!works_by_rows(node(step))) continue;
            results = std::max(results, size_t(step.chunk * filters_of(step)) * 4);
            row = std::max(row, size_t(out.w * out.c) * 4);
        }
        plan_.row_offset = round_up(results);
        plan_.pool_offset = plan_.row_offset + round_up(row);
        plan_.scratch_bytes = plan_.pool_offset + round_up(pool);
        if (plan_.scratch_bytes > kLargestArena) throw Error("the network is too large to run");
    }

    const Container& file_;
    Plan plan_;
    std::vector<int> last_float_use_, float_uses_;
    bool input_in_passing_ = false;
};

}  // namespace

Plan make_plan(const Container& file) { return Planner(file).make(); }

}  // namespace surge
