// Rows of convolutions and their epilogues.
#include <algorithm>

#include "execute.hpp"

namespace surge {
namespace {

Finish finish_of(ActivationKind kind) { return static_cast<Finish>(static_cast<int>(kind)); }

template <typename T>
const T* data_or_null(const std::vector<T>& values, int64_t first) {
    return values.empty() ? nullptr : values.data() + first;
}

}  // namespace

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

void Executor::binary_row(const Step& step, const Node& node, int64_t y, Columns columns,
                          float* out, char* scratch) {
    const Shape& result = shape(node.output);
    const SignSink& sink = plan_.sinks[size_t(step.signs)];
    const BinaryFilters& filters = step.binary;
    int64_t per_group = step.depthwise ? result.c : result.c / node.groups;
    int64_t padded = filters.blocks * kLanes;
    const uint32_t* bits =
        buffer<uint32_t>(sink.buffer) + y * node.window.stride[0] * sink.row_words();
    size_t row_class = size_t(filters.rows.of_position[size_t(y)]) * filters.columns.taps.size() *
                       size_t(filters.base_pitch) * 4;
    BinaryRow call = {};
    call.offsets = step.offsets.data();
    call.words = filters.words;
    call.step = node.window.stride[1] * sink.pixel_words();
    call.blocks = filters.blocks;
    call.counts = reinterpret_cast<int32_t*>(scratch);
    int64_t groups = step.depthwise ? 1 : node.groups;
    for (int64_t g = 0; g < groups; ++g)
        for (int64_t x = columns.first; x < columns.end; x += step.chunk) {
            call.pixels = std::min(step.chunk, columns.end - x);
            call.input = bits + g * sink.words + x * call.step;
            call.weights = filters.group(g);
            FinishRow end = finish(node, y, x, out);
            end.pixels = call.pixels;
            end.counts = call.counts;
            end.value_pitch = padded;
            end.base = filters.base.as<int32_t>(row_class) + g * padded;
            end.base_pitch = filters.base_pitch;
            end.classes = filters.columns.of_position.data() + x;
            choose_channels(end, node, g * per_group, per_group);
            if (step.depthwise) {
                kernels_.binary_depth_row({call.input, call.offsets, call.words, call.step,
                                           call.pixels, result.c, call.weights, call.counts});
                kernels_.finish_row(end);
                continue;
            }
            if (groups > 1) {
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
                if (filters.span.data()) end.span = filters.span.as<uint32_t>(row_class);
            }
            kernels_.binary_finish(call, end);
        }
}

void Executor::float_row(const Step& step, const Node& node, int64_t y, Columns columns,
                         float* out, char* scratch) {
    const Shape &in = shape(node.inputs[0]), &result = shape(node.output);
    int64_t groups = step.depthwise ? 1 : node.groups;
    int64_t per_group = result.c / groups, depth = in.c / groups;
    int64_t width = in.w + 2 * node.window.padding[1];
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
    if (step.joined > 1) columns.end = result.w * step.joined;
    for (int64_t g = 0; g < groups; ++g)
        for (int64_t x = columns.first; x < columns.end; x += step.chunk) {
            call.pixels = std::min(step.chunk, columns.end - x);
            call.input = source + y * node.window.stride[0] * width * in.c + g * depth +
                         x * call.step;
            call.weights = step.real.group(g);
            if (step.depthwise)
                kernels_.float_depth_row({call.input, call.offsets, call.runs, call.step,
                                          call.pixels, result.c,
                                          static_cast<const float*>(call.weights), call.sums});
            else
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
void Executor::plane_row(const Step& step, const Node& node, int64_t y, Columns columns,
                         float* out, char* scratch) {
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
        for (int64_t x = columns.first; x < columns.end; x += step.chunk) {
            call.pixels = std::min(step.chunk, columns.end - x);
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

void Executor::byte_row(const Step& step, const Node& node, int64_t y, Columns columns, float* out,
                        char* scratch) {
    const Shape &in = shape(node.inputs[0]), &result = shape(node.output);
    int64_t pixel = (in.c + 3) / 4 * 4, width = in.w + 2 * node.window.padding[1];
    ByteRow call = {};
    call.offsets = step.offsets.data();
    call.quads = step.bytes.quads;
    call.step = node.window.stride[1] * pixel;
    call.weights = step.bytes.weights.as<int8_t>();
    call.blocks = step.bytes.blocks;
    call.sums = reinterpret_cast<int32_t*>(scratch);
    for (int64_t x = columns.first; x < columns.end; x += step.chunk) {
        call.pixels = std::min(step.chunk, columns.end - x);
        call.input = buffer<uint8_t>(step.padded) +
                     y * node.window.stride[0] * width * pixel + x * call.step;
        kernels_.byte_row(call);
        FinishRow end = finish(node, y, x, out);
        end.pixels = call.pixels;
        end.counts = call.sums;
        end.value_pitch = call.blocks * kLanes;
        choose_channels(end, node, 0, result.c);
        kernels_.finish_row(end);
    }
}

void Executor::affine_row(const Node& node, int64_t y, Columns columns, float* out) {
    const Shape& in = shape(node.inputs[0]);
    FinishRow end = finish(node, y, columns.first, out);
    end.pixels = columns.count();
    end.sums = value(node.inputs[0]) + (y * in.w + columns.first) * in.c;
    end.value_pitch = in.c;
    choose_channels(end, node, 0, in.c);
    kernels_.finish_row(end);
}

}  // namespace surge
