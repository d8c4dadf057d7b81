#include "execute.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "arena.hpp"
#include "borders.hpp"
#include "rows.hpp"

namespace surge {
namespace {

// Below this many values a step is too small to wake another thread for.
constexpr int64_t kWorthSharing = 16384;
// Fewer columns are not worth reading the weights for once more.
constexpr int64_t kLeastColumns = 16;

}  // namespace

float* Executor::value(int index) const {
    if (output_ && index == plan_.graph.output) return output_;
    int place = plan_.value_buffer[size_t(index)];
    return place < 0 ? nullptr : buffer<float>(place);
}

// The result is made where it is wanted, unless its order differs from torch's.
void Executor::write_to(float* output) {
    bool same_order = plan_.graph.output_dims.size() != 3 && plan_.graph.output != 0;
    output_ = same_order ? output : nullptr;
}

void Executor::run(const float* input, float* output) {
    write_to(output);
    for (const Step& step : plan_.steps) run_step(step, input);
    copy_out(output);
}

void Executor::profile(const float* input, float* output, double* microseconds) {
    using Clock = std::chrono::steady_clock;
    write_to(output);
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
        Clock::time_point start = Clock::now();
        run_step(plan_.steps[i], input);
        microseconds[i] += std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    }
    copy_out(output);
}

template <typename Task>
void Executor::share(int64_t count, int64_t work, const Task& task) {
    if (pool_ && work >= kWorthSharing)
        pool_->run(count, task);
    else
        for (int64_t i = 0; i < count; ++i) task(i, 0);
}

void Executor::run_step(const Step& step, const float* input) {
    if (step.pulled || step.skipped) return;
    clear_sinks(step);
    if (step.node < 0) return input_step(step, input);
    const Node& node = plan_.graph.nodes[size_t(step.node)];
    if (step.padded >= 0) pad_input(step, node);
    if (step.packed >= 0) arrange(step, node);
    if (node.op == Op::MaxPool) return pool_step(step, node);
    const Shape& out = shape(step.output);
    float* result = value(step.output);
    int64_t parts = pieces(step, node);
    auto task = [&](int64_t index, int worker) {
        int64_t y = index / parts, part = index % parts;
        Columns columns = {part * out.w / parts, (part + 1) * out.w / parts};
        char* scratch = workspace_.scratch.data() + size_t(worker) * plan_.scratch_bytes;
        // A value that is only needed as bits exists one row at a time.
        int64_t values = out.w * out.c;
        float* target = result ? result + y * step.joined * values
                               : reinterpret_cast<float*>(scratch + plan_.row_offset);
        row(step, y, columns, target, scratch);
        for (int64_t i = 0; i < step.joined; ++i)
            write_sinks(step, y * step.joined + i, columns, target + i * values);
    };
    share(out.h / step.joined * parts, out.elements(), task);
}

// Rows of tokens are few and long: where there are too few for all threads, each is made in parts.
int64_t Executor::pieces(const Step& step, const Node& node) const {
    bool splits = works_by_rows(node) && node.op != Op::Add && node.op != Op::Round &&
                  node.op != Op::Ternary;
    const Shape& out = shape(step.output);
    int64_t wanted = pool_ ? 2 * pool_->threads() / (out.h / step.joined) : 1;
    if (step.joined > 1 || !splits) return 1;
    return std::max<int64_t>(1, std::min(wanted, out.w / kLeastColumns));
}

void Executor::clear_sinks(const Step& step) {
    for (int index : step.sinks) {
        const SignSink& sink = plan_.sinks[size_t(index)];
        for (int64_t plane = 0; plane < sink.planes; ++plane)
            clear_border(buffer<char>(sink.buffer) + plane * sink.plane_words() * 4, sink.rows,
                         sink.columns, sink.pixel_words() * 4, sink.padding);
    }
}

void Executor::write_sinks(const Step& step, int64_t y, Columns columns, const float* row) {
    int64_t pixels = columns.count();
    row += columns.first * shape(step.output).c;
    for (int index : step.sinks) {
        if (index == step.fused) continue;
        const SignSink& sink = plan_.sinks[size_t(index)];
        uint32_t* bits = buffer<uint32_t>(sink.buffer) + sink.place(y, columns.first);
        if (sink.rule == BitRule::Above) {
            tokens_.above_row({row, pixels, sink.groups, sink.channels, sink.words,
                               sink.shift.empty() ? nullptr : sink.shift.data(), sink.limit,
                               bits});
            continue;
        }
        if (sink.rule != BitRule::Sign) {
            kernels_.plane_bits({row, pixels * sink.groups, sink.channels, sink.words, sink.planes,
                                 sink.rule == BitRule::Ternary, bits, sink.plane_words()});
            continue;
        }
        SignRow signs;
        signs.input = row;
        signs.pixels = pixels;
        signs.groups = sink.groups;
        signs.channels = sink.channels;
        signs.words = sink.words;
        signs.shift = sink.shift.empty() ? nullptr : sink.shift.data();
        signs.bits = bits;
        kernels_.sign_row(signs);
    }
}

// Images have their channels first, rows of tokens are in the engine's order already.
void Executor::input_step(const Step& step, const float* input) {
    const Shape& in = shape(0);
    float* result = value(0);
    bool image = plan_.graph.input_dims.size() == 3;
    for (int index : plan_.direct) {
        const Step& reader = plan_.steps[size_t(index)];
        const Node& node = plan_.graph.nodes[size_t(reader.node)];
        const int64_t* padding = node.window.padding;
        int64_t rows = in.h + 2 * padding[0], columns = in.w + 2 * padding[1];
        if (node.by_bytes())
            fill_border(buffer<uint8_t>(reader.padded), rows, columns, node.pixels.fill, padding);
        else
            clear_border(buffer<char>(reader.padded), rows, columns, in.c * 4, padding);
    }
    share(in.h, in.elements(), [&](int64_t y, int worker) {
        char* scratch = workspace_.scratch.data() + size_t(worker) * plan_.scratch_bytes;
        float* row = result ? result + y * in.w * in.c
                            : reinterpret_cast<float*>(scratch + plan_.row_offset);
        if (image && (result || !step.sinks.empty()))
            input_row(input, in, y, row);
        else if (result)
            std::copy_n(input, in.elements(), result);
        for (int index : plan_.direct) {
            const Step& reader = plan_.steps[size_t(index)];
            const Node& node = plan_.graph.nodes[size_t(reader.node)];
            const int64_t* padding = node.window.padding;
            int64_t place = (y + padding[0]) * (in.w + 2 * padding[1]) + padding[1];
            if (!node.by_bytes()) {
                input_row(input, in, y, buffer<float>(reader.padded) + place * in.c);
                continue;
            }
            int64_t quads = (in.c + 3) / 4;
            kernels_.byte_pixels({input + y * in.w, in.h * in.w, in.w, in.c, quads,
                                  node.pixels.scale.data(), node.pixels.bias.data(),
                                  buffer<uint8_t>(reader.padded) + place * quads * 4});
        }
        write_sinks(step, y, {0, in.w}, row);
    });
}

void Executor::pad_input(const Step& step, const Node& node) {
    const Shape& in = shape(node.inputs[0]);
    const float* source = value(node.inputs[0]);
    for (int index : plan_.direct)
        if (&plan_.steps[size_t(index)] == &step) return;
    float* target = buffer<float>(step.padded);
    const int64_t* padding = node.window.padding;
    int64_t columns = in.w + 2 * padding[1];
    clear_border(buffer<char>(step.padded), in.h + 2 * padding[0], columns, in.c * 4, padding);
    for (int64_t y = 0; y < in.h; ++y)
        std::copy_n(source + y * in.w * in.c, in.w * in.c,
                    target + ((y + padding[0]) * columns + padding[1]) * in.c);
}

// Rows of the image are there already, or made in turn: `ring` holds as many as a window needs.
void Executor::pool_step(const Step& step, const Node& node) {
    const Shape &in = shape(node.inputs[0]), &out = shape(step.output);
    const Window& window = node.window;
    int64_t values = in.w * in.c, kernel = window.kernel[0];
    float* result = value(step.output);
    const float* image = value(node.inputs[0]);
    const Step* source = step.pulls >= 0 ? &plan_.steps[size_t(step.pulls)] : nullptr;
    if (source && source->padded >= 0)
        pad_input(*source, plan_.graph.nodes[size_t(source->node)]);
    int64_t strips = pool_ ? std::min<int64_t>(out.h, 4 * pool_->threads()) : 1;
    auto task = [&](int64_t strip, int worker) {
        char* scratch = workspace_.scratch.data() + size_t(worker) * plan_.scratch_bytes;
        float* column = reinterpret_cast<float*>(scratch + plan_.pool_offset);
        int64_t pitch = int64_t(round_up(size_t(values) * 4) / 4), made = -1;
        float* ring = column + pitch;
        std::vector<const float*>& rows = workspace_.rows[size_t(worker)];
        for (int64_t y = strip * out.h / strips; y < (strip + 1) * out.h / strips; ++y) {
            rows.clear();
            for (int64_t k = 0; k < kernel; ++k) {
                int64_t r = y * window.stride[0] - window.padding[0] + k * window.dilation[0];
                if (r < 0 || r >= in.h) continue;
                if (source && r > made) {
                    this->row(*source, r, {0, in.w}, ring + r % kernel * pitch, scratch);
                    made = r;
                }
                rows.push_back(source ? ring + r % kernel * pitch : image + r * values);
            }
            float* target = result + y * out.w * out.c;
            kernels_.max_row({rows.data(), int64_t(rows.size()), in.w, in.c, window.kernel[1],
                              window.stride[1], window.padding[1], window.dilation[1], out.w,
                              column, target});
            write_sinks(step, y, {0, out.w}, target);
        }
    };
    share(strips, in.elements(), task);
}

void Executor::average_row(const Node& node, const RowSource& in, int64_t y, int64_t pixels,
                           float* out) {
    const Window& window = node.window;
    AverageRow call = {};
    call.image = in.data;
    call.height = in.shape.h;
    call.width = in.shape.w;
    call.channels = in.shape.c;
    call.top = y * window.stride[0] - window.padding[0];
    std::copy_n(window.kernel, 2, call.kernel);
    std::copy_n(window.stride, 2, call.stride);
    std::copy_n(window.padding, 2, call.padding);
    std::copy_n(window.dilation, 2, call.dilation);
    call.divisor = node.divisor;
    call.pixels = pixels;
    call.output = out;
    kernels_.average_row(call);
}

void Executor::row(const Step& step, int64_t y, Columns columns, float* out, char* scratch) {
    const Shape& result = shape(step.output);
    const Node& node = plan_.graph.nodes[size_t(step.node)];
    RowSource in = {value(node.inputs[0]), shape(node.inputs[0])};
    switch (node.op) {
        case Op::BinaryConv: return binary_row(step, node, y, columns, out, scratch);
        case Op::Conv:
            if (step.planar) return plane_row(step, node, y, columns, out, scratch);
            return node.by_bytes() ? byte_row(step, node, y, columns, out, scratch)
                                   : float_row(step, node, y, columns, out, scratch);
        case Op::Affine: return affine_row(node, y, columns, out);
        case Op::MaxPool: return;  // has a step of its own
        case Op::AvgPool: return average_row(node, in, y, result.w, out);
        case Op::PadChannels: return pad_channels_row(node, in, y, result.c, out);
        case Op::Pad: return pad_row(node, in, y, result.w, out);
        case Op::Subsample: return subsample_row(node, in, y, result.w, out);
        case Op::Flatten:
            if (node.channels_first) return flatten_all(in, out);
            std::copy_n(in.data, in.shape.elements(), out);
            return;
        case Op::Rows:
            std::copy_n(in.data + y * result.w * result.c, result.w * result.c, out);
            return;
        case Op::Transpose: return flatten_all(in, out);
        case Op::Shuffle: return shuffle_row(in, y, node.groups, out);
        case Op::Absolute: return absolute_row(in, y, out);
        case Op::ChannelMean: return channel_mean_row(in, y, out);
        case Op::SquareRoot: return square_root_row(in, y, out);
        case Op::Round: return round_row(node, in, y, out);
        case Op::SampleMean: *out = sample_mean(in); return;
        case Op::SampleVariance: *out = sample_variance(in, node.correction); return;
        case Op::Multiply:
        case Op::Add:
        case Op::Subtract:
        case Op::Divide:
        case Op::Ternary:
            return pair_row(node.op, in, {value(node.inputs[1]), shape(node.inputs[1])}, y, out);
        case Op::Concat: {
            int64_t first = 0;
            for (int part : node.inputs) {
                concat_row({value(part), shape(part)}, y, first, result.c, out);
                first += shape(part).c;
            }
            return;
        }
        default: return token_row(step, node, y, columns, out, scratch);
    }
}

void Executor::copy_out(float* output) const {
    if (output_) return;
    RowSource last = {value(plan_.graph.output), shape(plan_.graph.output)};
    if (plan_.graph.output_dims.size() == 3)
        flatten_all(last, output);
    else
        std::copy_n(last.data, last.shape.elements(), output);
}

}  // namespace surge
