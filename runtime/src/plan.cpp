#include "plan.hpp"

#include <algorithm>

#include "arena.hpp"
#include "error.hpp"
#include "factors.hpp"

namespace surge {
namespace {

constexpr int64_t kMostPlanes = 8;      // pairs of planes of a convolution

class Planner {
   public:
    explicit Planner(const Container& file) : file_(file) {}

    Plan make() {
        plan_.graph = read_graph(file_);
        make_steps();
        skip_bits();
        find_uses();
        place_sinks();
        place_factors();
        choose_direct();
        choose_pulled();
        place_values();
        place_padded();
        assign_offsets(plan_);
        for (Step& step : plan_.steps) prepare(file_, plan_, step);
        gather_weights(plan_);
        size_scratch(plan_);
        return std::move(plan_);
    }

   private:
    const Shape& shape(int value) const { return plan_.shape(value); }
    const Node& node(const Step& step) const { return plan_.node(step); }

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
        if (made && made->op == Op::Above) {
            rule = BitRule::Above;
            return 1;
        }
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
        return reader.op == Op::BinaryConv || reader.op == Op::BinaryMatmul || step.planar;
    }

    // Whether an input is read as bits that the maker of `above`'s own input writes.
    bool reads_past(const Step& step, size_t input) const {
        const Node* made = maker(node(step).inputs[input]);
        if (!made || made->op != Op::Above) return false;
        return step.planar || (node(step).op == Op::BinaryMatmul && node(step).unit && input == 0);
    }

    // A comparison that only such readers want is not computed.
    void skip_bits() {
        std::vector<bool> wanted(plan_.graph.values.size(), false);
        for (size_t i = 1; i < plan_.steps.size(); ++i) {
            const Node& reader = node(plan_.steps[i]);
            if (reader.residual >= 0) wanted[size_t(reader.residual)] = true;
            for (size_t k = 0; k < reader.inputs.size(); ++k)
                if (!reads_past(plan_.steps[i], k)) wanted[size_t(reader.inputs[k])] = true;
        }
        wanted[size_t(plan_.graph.output)] = true;
        for (size_t i = 1; i < plan_.steps.size(); ++i)
            plan_.steps[i].skipped = node(plan_.steps[i]).op == Op::Above && !wanted[i];
    }

    // Values are numbered in the order they are made: value v comes from step v.
    void find_uses() {
        last_float_use_.assign(plan_.graph.values.size(), -1);
        float_uses_.assign(plan_.graph.values.size(), 0);
        for (size_t i = 1; i < plan_.steps.size(); ++i) {
            const Node& reader = node(plan_.steps[i]);
            if (plan_.steps[i].skipped) continue;
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
            if (value == 0) continue;  // the network's input, which no node makes
            Step& source = plan_.steps[size_t(value)];
            bool alone = float_uses_[size_t(value)] == 1 && source.sinks.empty();
            bool windowed = node(source).op == Op::Conv || node(source).op == Op::BinaryConv ||
                            node(source).op == Op::Affine;
            if (!alone || !windowed) continue;
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
            Step& step = plan_.steps[i];
            bool product = reader.op == Op::BinaryMatmul;
            step.signs = product ? factor_sink(reader, 0) : find_sink(reader);
            last_read(step.signs, int(i));
            if (!product) continue;
            step.second = factor_sink(reader, 1);
            last_read(step.second, int(i));
            size_t bytes = factor_bytes(reader, shape(reader.inputs[1]));
            if (bytes > kLargestArena) throw Error("\"" + reader.name + "\" is too large to run");
            step.packed = add_buffer(bytes, int(i), int(i));
        }
    }

    void place_factors() {
        for (size_t i = 1; i < plan_.steps.size(); ++i) {
            const Node& reader = node(plan_.steps[i]);
            if (reader.op != Op::Matmul) continue;
            size_t bytes = real_factor_bytes(reader, shape(reader.inputs[1]));
            if (bytes > kLargestArena) throw Error("\"" + reader.name + "\" is too large to run");
            plan_.steps[i].packed = add_buffer(bytes, int(i), int(i));
        }
    }

    void last_read(int sink, int step) {
        Buffer& buffer = plan_.buffers[size_t(plan_.sinks[size_t(sink)].buffer)];
        buffer.last = std::max(buffer.last, step);
    }

    // Read what `above` compares, instead of its result.
    void look_past(SignSink& sink) const {
        const Node* made = maker(sink.value);
        sink.rule = BitRule::Above;
        sink.limit = made->number;
        sink.shift = made->shift;
        sink.value = made->inputs[0];
    }

    // Every head has whole words; where its channels fill them, heads are no groups.
    int factor_sink(const Node& reader, size_t input) {
        SignSink sink;
        sink.value = reader.inputs[input];
        const Shape& in = shape(sink.value);
        bool side_by_side = reader.transposed || input == 1;
        if (side_by_side && in.c / reader.heads % kWordBits) sink.groups = reader.heads;
        sink.channels = in.c / sink.groups;
        sink.words = (sink.channels + kWordBits - 1) / kWordBits;
        sink.rows = in.h;
        sink.columns = in.w;
        if (input == 0 && reader.unit) look_past(sink);
        return same_sink(std::move(sink), reader.name);
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
        if (sink.rule == BitRule::Above) look_past(sink);
        return same_sink(std::move(sink), reader.name);
    }

    // The number of a sink: of one that is there already, if it has the same bits.
    int same_sink(SignSink sink, const std::string& reader) {
        for (size_t i = 0; i < plan_.sinks.size(); ++i) {
            const SignSink& other = plan_.sinks[i];
            if (other.value == sink.value && other.groups == sink.groups &&
                other.rule == sink.rule && other.limit == sink.limit &&
                std::equal(sink.padding, sink.padding + 2, other.padding) &&
                other.shift == sink.shift)
                return int(i);
        }
        size_t words = size_t(sink.planes) * size_t(sink.plane_words());
        if (words > kLargestArena / 4) throw Error("\"" + reader + "\" is too large to run");
        sink.buffer = add_buffer(words * 4, sink.value, sink.value);
        int index = int(plan_.sinks.size());
        plan_.steps[size_t(sink.value)].sinks.push_back(index);
        plan_.sinks.push_back(std::move(sink));
        return index;
    }

    void place_values() {
        plan_.value_buffer.assign(plan_.graph.values.size(), -1);
        for (size_t v = 0; v < plan_.graph.values.size(); ++v) {
            const Step& step = plan_.steps[v];
            bool input = step.node < 0, image = plan_.graph.input_dims.size() == 3;
            bool by_rows = !input && works_by_rows(node(step));
            bool unread = last_float_use_[v] < 0 && (by_rows || (input && image));
            if (unread || step.pulled || step.skipped) continue;
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

    const Container& file_;
    Plan plan_;
    std::vector<int> last_float_use_, float_uses_;
    bool input_in_passing_ = false;
};

}  // namespace

Plan make_plan(const Container& file) { return Planner(file).make(); }

}  // namespace surge
