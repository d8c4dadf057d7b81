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

template <typename T>
const T* data_or_null(const std::vector<T>& values, int64_t first) {
    return values.empty() ? nullptr : values.data() + first;
}

// Zeros around an image: the memory held something else before.
void clear_border(char* data, int64_t rows, int64_t columns, int64_t pixel, const int64_t* padding) {
    int64_t row = columns * pixel, side = padding[1] * pixel;
    std::memset(data, 0, size_t(padding[0] * row));
    std::memset(data + (rows - padding[0]) * row, 0, size_t(padding[0] * row));
    if (side == 0) return;
    for (int64_t y = padding[0]; y < rows - padding[0]; ++y) {
        std::memset(data + y * row, 0, size_t(side));
        std::memset(data + (y + 1) * row - side, 0, size_t(side));
    }
}

// The same with a pixel of bytes instead of zeros.
void fill_border(uint8_t* data, int64_t rows, int64_t columns, const std::vector<uint8_t>& fill,
                 const int64_t* padding) {
    int64_t width = int64_t(fill.size() + 3) / 4 * 4;
    auto put = [&](int64_t y, int64_t x, int64_t count) {
        uint8_t* pixel = data + (y * columns + x) * width;
        for (int64_t i = 0; i < count; ++i, pixel += width) {
            std::memset(pixel, 0, size_t(width));
            std::memcpy(pixel, fill.data(), fill.size());
        }
    };
    for (int64_t y = 0; y < rows; ++y) {
        if (y < padding[0] || y >= rows - padding[0]) {
            put(y, 0, columns);
        } else {
            put(y, 0, padding[1]);
            put(y, columns - padding[1], padding[1]);
        }
    }
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

template <typename Task>
void Executor::share(int64_t count, int64_t work, const Task& task) {
    if (pool_ && work >= kWorthSharing)
        pool_->run(count, task);
    else
        for (int64_t i = 0; i < count; ++i) task(i, 0);
}

void Executor::run_step(const Step& step, const float* input) {
    if (step.pulled) return;
    clear_sinks(step);
    if (step.node < 0) return input_step(step, input);
    const Node& node = plan_.graph.nodes[size_t(step.node)];
    if (step.padded >= 0) pad_input(step, node);
    if (node.op == Op::MaxPool) return pool_step(step, node);
    const Shape& out = shape(step.output);
    float* result = value(step.output);
    auto task = [&](int64_t y, int worker) {
        char* scratch = workspace_.scratch.data() + size_t(worker) * plan_.scratch_bytes;
        // A value that is only needed as bits exists one row at a time.
        int64_t values = out.w * out.c;
        float* target = result ? result + y * step.joined * values
                               : reinterpret_cast<float*>(scratch + plan_.row_offset);
        row(step, y, target, scratch);
        for (int64_t i = 0; i < step.joined; ++i)
            write_sinks(step, y * step.joined + i, target + i * values);
    };
    share(out.h / step.joined, out.elements(), task);
}

void Executor::clear_sinks(const Step& step) {
    for (int index : step.sinks) {
        const SignSink& sink = plan_.sinks[size_t(index)];
        for (int64_t plane = 0; plane < sink.planes; ++plane)
            clear_border(buffer<char>(sink.buffer) + plane * sink.plane_words() * 4, sink.rows,
                         sink.columns, sink.pixel_words() * 4, sink.padding);
    }
}

void Executor::write_sinks(const Step& step, int64_t y, const float* row) {
    for (int index : step.sinks) {
        if (index == step.fused) continue;
        const SignSink& sink = plan_.sinks[size_t(index)];
        if (sink.rule != BitRule::Sign) {
            kernels_.plane_bits({row, shape(sink.value).w * sink.groups, sink.channels, sink.words,
                                 sink.planes, sink.rule == BitRule::Ternary,
                                 buffer<uint32_t>(sink.buffer) + sink.place(y, 0),
                                 sink.plane_words()});
            continue;
        }
        SignRow signs;
        signs.input = row;
        signs.pixels = shape(sink.value).w;
        signs.groups = sink.groups;
        signs.channels = sink.channels;
        signs.words = sink.words;
        signs.shift = data_or_null(sink.shift, 0);
        signs.bits = buffer<uint32_t>(sink.buffer) + sink.place(y, 0);
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
    share(in.h, in.elements(), [&](int64_t y, int) {
        if (result && image)
            input_row(input, in, y, result + y * in.w * in.c);
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
        if (result) write_sinks(step, y, result + y * in.w * in.c);
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
                    this->row(*source, r, ring + r % kernel * pitch, scratch);
                    made = r;
                }
                rows.push_back(source ? ring + r % kernel * pitch : image + r * values);
            }
            float* target = result + y * out.w * out.c;
            kernels_.max_row({rows.data(), int64_t(rows.size()), in.w, in.c, window.kernel[1],
                              window.stride[1], window.padding[1], window.dilation[1], out.w,
                              column, target});
            write_sinks(step, y, target);
        }
    };
    share(strips, in.elements(), task);
}

void Executor::row(const Step& step, int64_t y, float* out, char* scratch) {
    const Shape& result = shape(step.output);
    const Node& node = plan_.graph.nodes[size_t(step.node)];
    RowSource in = {value(node.inputs[0]), shape(node.inputs[0])};
    switch (node.op) {
        case Op::BinaryConv: return binary_row(step, node, y, out, scratch);
        case Op::Conv:
            if (step.planar) return plane_row(step, node, y, out, scratch);
            return node.by_bytes() ? byte_row(step, node, y, out, scratch)
                                   : float_row(step, node, y, out, scratch);
        case Op::Affine: return affine_row(node, y, out);
        case Op::MaxPool: return;  // has a step of its own
        case Op::AvgPool: return avg_pool_row(node, in, y, result.w, out);
        case Op::PadChannels: return pad_channels_row(node, in, y, result.c, out);
        case Op::Subsample: return subsample_row(node, in, y, result.w, out);
        case Op::Flatten:
            if (node.channels_first) return flatten_all(in, out);
            std::copy_n(in.data, in.shape.elements(), out);
            return;
        case Op::Transpose: return flatten_all(in, out);
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
    end.between_low = data_or_null(node.activation.lows, first);
    end.between_high = data_or_null(node.activation.highs, first);
    end.output += first;
    if (end.residual) end.residual += first;
}

}  // namespace

void Executor::binary_row(const Step& step, const Node& node, int64_t y, float* out,
                          char* scratch) {
    const Shape& result = shape(node.output);
    const SignSink& sink = plan_.sinks[size_t(step.signs)];
    const BinaryFilters& filters = step.binary;
    int64_t per_group = result.c / node.groups, padded = filters.blocks * kLanes;
    const uint32_t* bits =
        buffer<uint32_t>(sink.buffer) + y * node.window.stride[0] * sink.row_words();
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
            FinishRow end = finish(node, y, x, out);
            end.pixels = call.pixels;
            end.counts = call.counts;
            end.value_pitch = padded;
            end.base = base + g * padded;
            end.base_pitch = filters.base_pitch;
            end.classes = filters.columns.of_position.data() + x;
            choose_channels(end, node, g * per_group, per_group);
            if (node.groups > 1) {
                kernels_.binary_row(call);
                kernels_.finish_row(end);
                continue;
            }
            // Rows that somebody asked for, and those with further readers, are kept.
            end.kept = step.pulled || value(step.output) ||
                       step.sinks.size() > (step.fused >= 0 ? 1u : 0u);
            if (step.fused >= 0) {
                const SignSink& target = plan_.sinks[size_t(step.fused)];
                end.bits = buffer<uint32_t>(target.buffer) + target.place(y, x);
                end.bits_pitch = target.pixel_words();
                end.shift = data_or_null(target.shift, 0);
                end.lowest = data_or_null(step.lowest, 0);
                end.highest = data_or_null(step.highest, 0);
            }
            kernels_.binary_finish(call, end);
        }
}

void Executor::float_row(const Step& step, const Node& node, int64_t y, float* out,
                         char* scratch) {
    const Shape &in = shape(node.inputs[0]), &result = shape(node.output);
    int64_t per_group = result.c / node.groups, depth = in.c / node.groups;
    int64_t columns = in.w + 2 * node.window.padding[1];
    const float* source = step.padded >= 0 ? buffer<float>(step.padded) : value(node.inputs[0]);
    y *= step.joined;
    FloatRow call = {};
    call.offsets = step.offsets.data();
    call.runs = int64_t(step.offsets.size());
    call.length = step.length;
    call.step = node.window.stride[1] * in.c;
    call.blocks = step.real.blocks;
    call.kind = step.real.kind;
    call.sums = reinterpret_cast<float*>(scratch);
    int64_t pixels = result.w * step.joined;
    for (int64_t g = 0; g < node.groups; ++g)
        for (int64_t x = 0; x < pixels; x += step.chunk) {
            call.pixels = std::min(step.chunk, pixels - x);
            call.input = source + y * node.window.stride[0] * columns * in.c + g * depth +
                         x * call.step;
            call.weights = step.real.group(g);
            kernels_.float_row(call);
            FinishRow end = finish(node, y, x, out);
            end.pixels = call.pixels;
            end.sums = call.sums;
            end.value_pitch = call.blocks * kLanes;
            choose_channels(end, node, g * per_group, per_group);
            kernels_.finish_row(end);
        }
}

// Every plane of the input with every plane of the weights; the sums are whole numbers.
void Executor::plane_row(const Step& step, const Node& node, int64_t y, float* out,
                         char* scratch) {
    const Shape& result = shape(node.output);
    const SignSink& sink = plan_.sinks[size_t(step.signs)];
    int64_t per_group = result.c / node.groups, padded = step.planes[0].bits.blocks * kLanes;
    BinaryRow call = {};
    call.offsets = step.offsets.data();
    call.words = step.planes[0].bits.words;
    call.step = node.window.stride[1] * sink.pixel_words();
    call.blocks = step.planes[0].bits.blocks;
    call.counts = reinterpret_cast<int32_t*>(scratch);
    int32_t* sums = call.counts + step.chunk * padded;
    const uint32_t* bits =
        buffer<uint32_t>(sink.buffer) + y * node.window.stride[0] * sink.row_words();
    for (int64_t g = 0; g < node.groups; ++g)
        for (int64_t x = 0; x < result.w; x += step.chunk) {
            call.pixels = std::min(step.chunk, result.w - x);
            std::fill_n(sums, call.pixels * padded, 0);
            for (size_t j = 0; j < step.planes.size(); ++j)
                for (int64_t i = 0; i < sink.planes; ++i) {
                    const PlaneFilters& plane = step.planes[j];
                    call.input = bits + i * sink.plane_words() + g * sink.words + x * call.step;
                    call.weights = plane.bits.group(g);
                    kernels_.binary_row(call);
                    kernels_.add_plane({call.pixels, padded, plane.ones.data() + g * padded,
                                        call.counts, sink.weight(i) * (int32_t(1) << j), sums});
                }
            FinishRow end = finish(node, y, x, out);
            end.pixels = call.pixels;
            end.counts = sums;
            end.value_pitch = padded;
            choose_channels(end, node, g * per_group, per_group);
            kernels_.finish_row(end);
        }
}

void Executor::byte_row(const Step& step, const Node& node, int64_t y, float* out, char* scratch) {
    const Shape &in = shape(node.inputs[0]), &result = shape(node.output);
    int64_t pixel = (in.c + 3) / 4 * 4, columns = in.w + 2 * node.window.padding[1];
    ByteRow call = {};
    call.offsets = step.offsets.data();
    call.quads = step.bytes.quads;
    call.step = node.window.stride[1] * pixel;
    call.weights = step.bytes.weights.as<int8_t>();
    call.blocks = step.bytes.blocks;
    call.sums = reinterpret_cast<int32_t*>(scratch);
    for (int64_t x = 0; x < result.w; x += step.chunk) {
        call.pixels = std::min(step.chunk, result.w - x);
        call.input = buffer<uint8_t>(step.padded) +
                     y * node.window.stride[0] * columns * pixel + x * call.step;
        kernels_.byte_row(call);
        FinishRow end = finish(node, y, x, out);
        end.pixels = call.pixels;
        end.counts = call.sums;
        end.value_pitch = call.blocks * kLanes;
        choose_channels(end, node, 0, result.c);
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
