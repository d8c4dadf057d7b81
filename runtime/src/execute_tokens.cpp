// Rows of the operators of tokens.
#include <algorithm>

#include "execute.hpp"
#include "factors.hpp"

namespace surge {

void Executor::token_row(const Step& step, const Node& node, int64_t y, Columns columns,
                         float* out, char* scratch) {
    const Shape& in = shape(node.inputs[0]);
    if (node.is_product()) return matmul_row(step, node, y, columns, out, scratch);
    const float* row = value(node.inputs[0]) + y * in.w * in.c;
    switch (node.op) {
        case Op::Embedding: return embedding_row(step, node, out);
        case Op::AddRows: return add_rows(step, node, out);
        case Op::PrependRows: return prepend_rows(step, node, out);
        case Op::Select: std::copy_n(row + node.index * in.c, in.c, out); return;
        case Op::Softmax: return softmax_row(node, y, columns, out);
        case Op::LayerNorm: return norm_row(step, node, y, columns, out, scratch);
        default: break;
    }
    // What acts on every value by itself.
    int64_t first = columns.first * in.c, count = columns.count() * in.c;
    row += first;
    out += first;
    switch (node.op) {
        case Op::Equals:
            for (int64_t i = 0; i < count; ++i) out[i] = row[i] == node.number ? 1.0f : 0.0f;
            return;
        case Op::Above:
            for (int64_t i = 0; i < count; ++i) {
                float t = node.shift.empty() ? row[i] : row[i] + node.shift[size_t(i % in.c)];
                out[i] = t > node.number ? 1.0f : 0.0f;
            }
            return;
        case Op::Gelu: return tokens_.gelu(row, count, out);
        case Op::Tanh: return tokens_.tanh(row, count, out);
        case Op::Sigmoid: return tokens_.sigmoid(row, count, out);
        default: return;
    }
}

// A number that no row has gives zeros, and is noted: nothing may throw while running.
void Executor::embedding_row(const Step& step, const Node& node, float* out) {
    const Shape& result = shape(node.output);
    const float* numbers = value(node.inputs[0]);
    for (int64_t t = 0; t < result.w; ++t, out += result.c) {
        float number = numbers[t];
        bool known = number >= 0.0f && number < float(node.rows);
        int64_t row = known ? int64_t(number) : 0;
        if (!known || float(row) != number) {
            workspace_.missing_in = step.node;
            workspace_.missing = number;
            std::fill_n(out, result.c, 0.0f);
        } else if (node.weight_bits) {
            bits_row(step.table.as<uint8_t>(), row, node.row_scale[size_t(row)], result.c, out);
        } else {
            std::copy_n(step.table.as<float>() + row * result.c, result.c, out);
        }
    }
}

void Executor::add_rows(const Step& step, const Node& node, float* out) {
    const Shape& in = shape(node.inputs[0]);
    const float *left = value(node.inputs[0]), *right = step.table.as<float>();
    for (int64_t i = 0; i < in.w * in.c; ++i) out[i] = left[i] + right[i];
}

void Executor::prepend_rows(const Step& step, const Node& node, float* out) {
    const Shape& in = shape(node.inputs[0]);
    int64_t first = node.rows * in.c;
    std::copy_n(step.table.as<float>(), first, out);
    std::copy_n(value(node.inputs[0]), in.elements(), out + first);
}

void Executor::softmax_row(const Node& node, int64_t y, Columns columns, float* out) {
    const Shape& in = shape(node.inputs[0]);
    const float* term = node.inputs.size() > 1 ? value(node.inputs[1]) : nullptr;
    tokens_.softmax_row({value(node.inputs[0]) + (y * in.w + columns.first) * in.c, term,
                         columns.count(), in.c, out + columns.first * in.c});
}

void Executor::norm_row(const Step& step, const Node& node, int64_t y, Columns columns, float* out,
                        char* scratch) {
    const Shape& in = shape(node.inputs[0]);
    float* normed = reinterpret_cast<float*>(scratch);
    for (int64_t x = columns.first; x < columns.end; x += step.chunk) {
        int64_t pixels = std::min(step.chunk, columns.end - x);
        tokens_.norm_row(
            {value(node.inputs[0]) + (y * in.w + x) * in.c, pixels, in.c, node.number, normed});
        FinishRow end = finish(node, y, x, out);
        end.pixels = pixels;
        end.sums = normed;
        end.value_pitch = in.c;
        choose_channels(end, node, 0, in.c);
        kernels_.finish_row(end);
    }
}

void Executor::arrange(const Step& step, const Node& node) {
    const Shape& second = shape(node.inputs[1]);
    if (node.op == Op::Matmul)
        return arrange_real_factor(node, second, value(node.inputs[1]),
                                   buffer<float>(step.packed));
    const SignSink& sink = plan_.sinks[size_t(step.second)];
    arrange_factor(node, second, buffer<uint32_t>(sink.buffer), sink.pixel_words(),
                   buffer<uint32_t>(step.packed));
}

// The kernels of convolutions, with the second factor in the place of weights. A row of the
// result is a head's, or has the channels of all heads side by side.
void Executor::matmul_row(const Step& step, const Node& node, int64_t y, Columns columns,
                          float* out, char* scratch) {
    const Shape &result = shape(node.output), &second = shape(node.inputs[1]);
    int64_t first_head = node.transposed ? y : 0, last_head = node.transposed ? y : node.heads - 1;
    int64_t channels = node.transposed ? result.c : result.c / node.heads;
    for (int64_t h = first_head; h <= last_head; ++h)
        for (int64_t x = columns.first; x < columns.end; x += step.chunk) {
            FinishRow end = finish(node, y, x, out);
            end.pixels = std::min(step.chunk, columns.end - x);
            if (node.op == Op::Matmul)
                end.sums = real_products(step, node, h, x, end.pixels, scratch);
            else
                end.counts = binary_products(step, node, h, x, end.pixels, scratch);
            end.value_pitch = factor_filters(node, second);
            choose_channels(end, node, node.transposed ? 0 : h * channels, channels);
            kernels_.finish_row(end);
        }
}

const int32_t* Executor::binary_products(const Step& step, const Node& node, int64_t head,
                                         int64_t x, int64_t pixels, char* scratch) {
    const Shape& second = shape(node.inputs[1]);
    const SignSink& sink = plan_.sinks[size_t(step.signs)];
    const uint32_t* packed = buffer<uint32_t>(step.packed);
    int64_t filters = factor_filters(node, second);
    BinaryRow call = {};
    call.offsets = step.offsets.data();
    call.words = int64_t(step.offsets.size());
    call.step = sink.pixel_words();
    call.blocks = filters / kLanes;
    call.counts = reinterpret_cast<int32_t*>(scratch);
    call.pixels = pixels;
    call.input = buffer<uint32_t>(sink.buffer) +
                 (node.transposed ? sink.place(0, x) + head * call.words : sink.place(head, x));
    call.weights = packed + head * filters * call.words;
    kernels_.binary_row(call);
    tokens_.products({pixels, filters, factor_base(node, second, packed, head), node.unit ? 1 : 2,
                      call.counts});
    return call.counts;
}

const float* Executor::real_products(const Step& step, const Node& node, int64_t head, int64_t x,
                                     int64_t pixels, char* scratch) {
    const Shape &in = shape(node.inputs[0]), &second = shape(node.inputs[1]);
    int64_t filters = factor_filters(node, second);
    FloatRow call = {};
    call.offsets = step.offsets.data();
    call.runs = 1;
    call.length = step.length;
    call.step = in.c;
    call.blocks = filters / kLanes;
    call.kind = Weights::F32;
    call.sums = reinterpret_cast<float*>(scratch);
    call.pixels = pixels;
    call.input = value(node.inputs[0]) +
                 (node.transposed ? x * in.c + head * step.length : (head * in.w + x) * in.c);
    call.weights = buffer<float>(step.packed) + head * filters * step.length;
    kernels_.float_row(call);
    return call.sums;
}

}  // namespace surge
