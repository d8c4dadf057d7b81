#include "execute.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "rows.hpp"

namespace surge {
namespace {

// Below this many values a step is too small to wake another thread for.
constexpr int64_t kWorthSharing = 16384;

Finish finish_of(ActivationKind kind) { return static_cast<Finish>(static_cast<int>(kind)); }

const float* data_or_null(const std::vector<float>& values, int64_t first) {
    return values.empty() ? nullptr : values.data() + first;
}

}  // namespace

float* Executor::value(int index) const {
    int place = plan_.value_buffer[size_t(index)];
    return place < 0 ? nullptr : buffer<float>(place);
}

void Executor::run(const float* input, float* output) {
    for (const Step& step : plan_.steps) run_step(step, input);
    copy_out(output);
}

void Executor::profile(const float* input, float* output, double* microseconds) {
    using Clock = std::chrono::steady_clock;
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
        Clock::time_point start = Clock::now();
        run_step(plan_.steps[i], input);
        microseconds[i] += std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    }
    copy_out(output);
}

void Executor::run_step(const Step& step, const float* input) {
    const Shape& out = shape(step.output);
    clear_sinks(step);
    if (step.padded >= 0) pad_input(step, plan_.graph.nodes[size_t(step.node)]);
    float* result = value(step.output);
    auto task = [&](int64_t y, int worker) {
        char* scratch = workspace_.scratch.data() + size_t(worker) * plan_.scratch_bytes;
        // A value that is only needed as bits exists one row at a time.
        float* target = result ? result + y * out.w * out.c
                               : reinterpret_cast<float*>(scratch + plan_.row_offset);
        row(step, y, target, scratch, input);
        write_sinks(step, y, target);
    };
    if (pool_ && out.elements() >= kWorthSharing)
        pool_->run(out.h, task);
    else
        for (int64_t y = 0; y < out.h; ++y) task(y, 0);
}

void Executor::clear_sinks(const Step& step) {
    for (int index : step.sinks) {
        const SignSink& sink = plan_.sinks[size_t(index)];
        // Only the border must be zero, but the memory held something else before.
        if (sink.padding[0] || sink.padding[1])
            std::memset(buffer<char>(sink.buffer), 0, plan_.buffers[size_t(sink.buffer)].bytes);
    }
}

void Executor::write_sinks(const Step& step, int64_t y, const float* row) {
    for (int index : step.sinks) {
        const SignSink& sink = plan_.sinks[size_t(index)];
        SignRow signs;
        signs.input = row;
        signs.pixels = shape(sink.value).w;
        signs.groups = sink.groups;
        signs.channels = sink.channels;
        signs.words = sink.words;
        signs.shift = data_or_null(sink.shift, 0);
        signs.bits = buffer<uint64_t>(sink.buffer) + (y + sink.padding[0]) * sink.row_words() +
                     sink.padding[1] * sink.pixel_words();
        kernels_.sign_row(signs);
    }
}

void Executor::pad_input(const Step& step, const Node& node) {
    const Shape& in = shape(node.inputs[0]);
    const float* source = value(node.inputs[0]);
    float* target = buffer<float>(step.padded);
    std::memset(target, 0, plan_.buffers[size_t(step.padded)].bytes);
    int64_t columns = in.w + 2 * node.window.padding[1];
    for (int64_t y = 0; y < in.h; ++y)
        std::copy_n(source + y * in.w * in.c, in.w * in.c,
                    target + ((y + node.window.padding[0]) * columns + node.window.padding[1]) *
                                 in.c);
}

void Executor::row(const Step& step, int64_t y, float* out, char* scratch, const float* input) {
    const Shape& result = shape(step.output);
    if (step.node < 0) {
        // Rows of tokens are in the engine's order already; images have their channels first.
        if (plan_.graph.input_dims.size() == 3)
            return input_row(input, result, y, out);
        std::copy_n(input, result.elements(), out);
        return;
    }
    const Node& node = plan_.graph.nodes[size_t(step.node)];
    RowSource in = {value(node.inputs[0]), shape(node.inputs[0])};
    switch (node.op) {
        case Op::BinaryConv: return binary_row(step, node, y, out, scratch);
        case Op::Conv: return float_row(step, node, y, out, scratch);
        case Op::Affine: return affine_row(node, y, out);
        case Op::MaxPool: return max_pool_row(node, in, y, result.w, out);
        case Op::AvgPool: return avg_pool_row(node, in, y, result.w, out);
        case Op::PadChannels: return pad_channels_row(node, in, y, result.c, out);
        case Op::Subsample: return subsample_row(node, in, y, result.w, out);
        case Op::Flatten:
            if (node.channels_first) return flatten_all(in, out);
            std::copy_n(in.data, in.shape.elements(), out);
            return;
        case Op::Absolute: return absolute_row(in, y, out);
        case Op::ChannelMean: return channel_mean_row(in, y, out);
        case Op::Multiply:
            return multiply_row(in, {value(node.inputs[1]), shape(node.inputs[1])}, y, out);
        case Op::Concat: {
            int64_t first = 0;
            for (int part : node.inputs) {
                concat_row({value(part), shape(part)}, y, first, result.c, out);
                first += shape(part).c;
            }
        }
    }
}

FinishRow Executor::finish(const Node& node, int64_t y, int64_t column, float* out) const {
    const Shape& result = shape(node.output);
    FinishRow end = {};
    if (node.residual >= 0)
        end.residual = value(node.residual) + (y * result.w + column) * result.c;
    end.output = out + column * result.c;
    end.output_pitch = result.c;
    end.kind = finish_of(node.activation.kind);
    end.low = node.activation.low;
    end.high = node.activation.high;
    return end;
}

namespace {

// Point a row's end at the channels of one group.
void choose_channels(FinishRow& end, const Node& node, int64_t first, int64_t channels) {
    end.channels = channels;
    end.scale = node.scale.data() + first;
    end.bias = node.bias.data() + first;
    end.slope = data_or_null(node.activation.slope, first);
    end.shift_in = data_or_null(node.activation.shift_in, first);
    end.shift_out = data_or_null(node.activation.shift_out, first);
    end.output += first;
    if (end.residual) end.residual += first;
}

}  // namespace

void Executor::binary_row(const Step& step, const Node& node, int64_t y, float* out,
                          char* scratch) {
    const Shape& result = shape(node.output);
    const SignSink& sink = plan_.sinks[size_t(step.signs)];
    const BinaryFilters& filters = step.binary;
    int64_t per_group = result.c / node.groups, padded = filters.blocks * kBinaryLanes;
    const uint64_t* bits =
        buffer<uint64_t>(sink.buffer) + y * node.window.stride[0] * sink.row_words();
    const int32_t* base = filters.base.as<int32_t>() + filters.rows.of_position[size_t(y)] *
                                                           int64_t(filters.columns.taps.size()) *
                                                           filters.base_pitch;
    BinaryRow call = {};
    call.offsets = step.offsets.data();
    call.words = filters.words;
    call.step = node.window.stride[1] * sink.pixel_words();
    call.blocks = filters.blocks;
    call.counts = reinterpret_cast<int32_t*>(scratch);
    for (int64_t g = 0; g < node.groups; ++g)
        for (int64_t x = 0; x < result.w; x += step.chunk) {
            call.pixels = std::min(step.chunk, result.w - x);
            call.input = bits + g * sink.words + x * call.step;
            call.weights = filters.group(g);
            kernels_.binary_row(call);
            FinishRow end = finish(node, y, x, out);
            end.pixels = call.pixels;
            end.counts = call.counts;
            end.value_pitch = padded;
            end.base = base + g * padded;
            end.base_pitch = filters.base_pitch;
            end.classes = filters.columns.of_position.data() + x;
            choose_channels(end, node, g * per_group, per_group);
            kernels_.finish_row(end);
        }
}

void Executor::float_row(const Step& step, const Node& node, int64_t y, float* out,
                         char* scratch) {
    const Shape &in = shape(node.inputs[0]), &result = shape(node.output);
    int64_t per_group = result.c / node.groups, depth = in.c / node.groups;
    int64_t columns = in.w + 2 * node.window.padding[1];
    const float* source = step.padded >= 0 ? buffer<float>(step.padded) : value(node.inputs[0]);
    FloatRow call = {};
    call.offsets = step.offsets.data();
    call.taps = node.window.taps();
    call.channels = depth;
    call.step = node.window.stride[1] * in.c;
    call.blocks = step.real.blocks;
    call.sums = reinterpret_cast<float*>(scratch);
    for (int64_t g = 0; g < node.groups; ++g)
        for (int64_t x = 0; x < result.w; x += step.chunk) {
            call.pixels = std::min(step.chunk, result.w - x);
            call.input = source + y * node.window.stride[0] * columns * in.c + g * depth +
                         x * call.step;
            call.weights = step.real.group(g);
            kernels_.float_row(call);
            FinishRow end = finish(node, y, x, out);
            end.pixels = call.pixels;
            end.sums = call.sums;
            end.value_pitch = call.blocks * kFloatLanes;
            choose_channels(end, node, g * per_group, per_group);
            kernels_.finish_row(end);
        }
}

void Executor::affine_row(const Node& node, int64_t y, float* out) {
    const Shape& in = shape(node.inputs[0]);
    FinishRow end = finish(node, y, 0, out);
    end.pixels = in.w;
    end.sums = value(node.inputs[0]) + y * in.w * in.c;
    end.value_pitch = in.c;
    choose_channels(end, node, 0, in.c);
    kernels_.finish_row(end);
}

void Executor::copy_out(float* output) const {
    RowSource last = {value(plan_.graph.output), shape(plan_.graph.output)};
    if (plan_.graph.output_dims.size() == 3)
        flatten_all(last, output);
    else
        std::copy_n(last.data, last.shape.elements(), output);
}

}  // namespace surge
