#include "graph.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "error.hpp"
#include "json.hpp"

namespace surge {
namespace {

// Limits that no real network meets; they keep every product below 2^63.
constexpr int64_t kLargestSide = 1 << 16;
constexpr int64_t kMostElements = int64_t(1) << 28;
constexpr int64_t kMostFilled = int64_t(1) << 26;
constexpr int64_t kLargestKernel = 1 << 10;

const std::map<std::string, Op> kOps = {
    {"conv2d", Op::Conv},          {"binary_conv2d", Op::BinaryConv}, {"affine", Op::Affine},
    {"max_pool", Op::MaxPool},     {"avg_pool", Op::AvgPool},         {"flatten", Op::Flatten},
    {"pad_channels", Op::PadChannels}, {"pad", Op::Pad},              {"rows", Op::Rows},
    {"shuffle", Op::Shuffle},
    {"subsample", Op::Subsample},  {"concat", Op::Concat},
    {"multiply", Op::Multiply},    {"absolute", Op::Absolute},
    {"channel_mean", Op::ChannelMean},
    {"add", Op::Add},              {"subtract", Op::Subtract},        {"divide", Op::Divide},
    {"square_root", Op::SquareRoot},   {"sample_mean", Op::SampleMean},
    {"sample_variance", Op::SampleVariance}, {"round", Op::Round},    {"ternary", Op::Ternary},
    {"transpose", Op::Transpose},
    {"embedding", Op::Embedding},  {"add_rows", Op::AddRows},
    {"prepend_rows", Op::PrependRows}, {"select", Op::Select},
    {"equals", Op::Equals},        {"above", Op::Above},              {"layer_norm", Op::LayerNorm},
    {"softmax", Op::Softmax},      {"gelu", Op::Gelu},                {"tanh", Op::Tanh},
    {"sigmoid", Op::Sigmoid},      {"matmul", Op::Matmul},
    {"binary_matmul", Op::BinaryMatmul},
};

class GraphReader {
   public:
    explicit GraphReader(const Container& file) : file_(file) {}

    Graph read() {
        const std::string& text = file_.required("graph");
        Json json = Json::parse(text.data(), text.size());
        const Json& input = json.at("input");
        graph_.input_dims = dims(input.at("shape"));
        names_[input.at("value").text()] = 0;
        graph_.values.push_back(shape_of(graph_.input_dims));
        for (const Json& entry : json.at("nodes").items()) read_node(entry);
        const Json& output = json.at("output");
        graph_.output = known(output.at("value").text());
        graph_.output_dims = dims(output.at("shape"));
        if (graph_.values[size_t(graph_.output)] != shape_of(graph_.output_dims))
            fail("the shape of the output is not what the operators make");
        return std::move(graph_);
    }

   private:
    [[noreturn]] void fail(const std::string& why) const {
        throw Error("damaged graph: " + (where_.empty() ? why : "\"" + where_ + "\": " + why));
    }

    static std::vector<int64_t> dims(const Json& list) {
        std::vector<int64_t> sizes;
        for (const Json& size : list.items()) sizes.push_back(size.integer(1, kMostElements));
        return sizes;
    }

    Shape shape_of(const std::vector<int64_t>& d) const {
        Shape shape;
        if (d.size() == 3)
            shape = {d[1], d[2], d[0]};
        else if (d.size() == 2)
            shape = {1, d[0], d[1]};
        else if (d.size() == 1)
            shape = {1, 1, d[0]};
        else
            fail("a shape has " + std::to_string(d.size()) + " dimensions");
        check(shape);
        return shape;
    }

    void check(const Shape& shape) const {
        if (shape.h < 1 || shape.w < 1 || shape.c < 1 || shape.h > kMostElements ||
            shape.w > kMostElements / shape.h || shape.c > kMostElements / (shape.h * shape.w))
            fail("a value is empty or too large");
    }

    int known(const std::string& name) const {
        auto found = names_.find(name);
        // Values must be made before they are read, so a graph has no cycles.
        if (found == names_.end()) fail("value \"" + name + "\" is read before it is made");
        return found->second;
    }

    const Shape& shape(int value) const { return graph_.values[size_t(value)]; }

    void read_node(const Json& entry) {
        Node node;
        where_ = node.name = entry.at("name").text();
        auto op = kOps.find(entry.at("op").text());
        if (op == kOps.end()) fail("unknown operator \"" + entry.at("op").text() + "\"");
        node.op = op->second;
        for (const Json& input : entry.at("inputs").items())
            node.inputs.push_back(known(input.text()));
        size_t needed = takes_two(node.op) ? 2 : 1;
        bool fits = node.op == Op::Concat    ? !node.inputs.empty()
                    : node.op == Op::Softmax ? node.inputs.size() == 1 || node.inputs.size() == 2
                                             : node.inputs.size() == needed;
        if (!fits) fail("wrong number of inputs");
        read_window(entry, node.window);
        Shape result = infer(entry, node);
        check(result);
        if (node.has_epilogue()) read_epilogue(entry, node, result);
        const std::string& name = entry.at("output").text();
        node.output = int(graph_.values.size());
        if (!names_.emplace(name, node.output).second) fail("value \"" + name + "\" is made twice");
        graph_.values.push_back(result);
        graph_.nodes.push_back(std::move(node));
        where_.clear();
    }

    static bool takes_two(Op op) {
        return op == Op::Multiply || op == Op::Add || op == Op::Subtract || op == Op::Divide ||
               op == Op::Ternary || op == Op::Matmul || op == Op::BinaryMatmul;
    }

    static void read_pair(const Json& entry, const char* key, int64_t low, int64_t high,
                          int64_t* pair) {
        const Json* list = entry.find(key);
        if (!list) return;
        if (list->items().size() != 2) throw Error("damaged graph: a window needs two numbers");
        for (size_t axis = 0; axis < 2; ++axis) pair[axis] = list->items()[axis].integer(low, high);
    }

    static void read_window(const Json& entry, Window& window) {
        read_pair(entry, "kernel", 1, kLargestSide, window.kernel);
        read_pair(entry, "stride", 1, kLargestSide, window.stride);
        read_pair(entry, "padding", 0, kLargestKernel, window.padding);
        read_pair(entry, "dilation", 1, kLargestKernel, window.dilation);
        if (const Json* ceiling = entry.find("ceiling"))
            window.ceiling = ceiling->integer(0, 1) == 1;
    }

    Shape windowed(const Node& node, int64_t channels) const {
        const Shape& in = shape(node.inputs[0]);
        bool pool = node.op == Op::MaxPool || node.op == Op::AvgPool;
        if (node.window.ceiling && !pool) fail("only windows of pools may hang over the edge");
        Shape out = {node.window.result(0, in.h), node.window.result(1, in.w), channels};
        if (out.h < 1 || out.w < 1) fail("the window is larger than the image");
        // The engine keeps padded copies of inputs.
        check({in.h + 2 * node.window.padding[0], in.w + 2 * node.window.padding[1], in.c});
        return out;
    }

    Shape infer(const Json& entry, Node& node) {
        const Shape& in = shape(node.inputs[0]);
        switch (node.op) {
            case Op::Conv:
            case Op::BinaryConv: return infer_convolution(entry, node);
            case Op::MaxPool: return infer_max_pool(node);
            case Op::AvgPool:
                if (const Json* divisor = entry.find("divisor"))
                    node.divisor = divisor->integer(1, kMostElements);
                return windowed(node, in.c);
            case Op::Subsample:
                for (int axis = 0; axis < 2; ++axis)
                    if (node.window.kernel[axis] != 1 || node.window.padding[axis] != 0 ||
                        node.window.dilation[axis] != 1)
                        fail("a subsample has a stride alone");
                return windowed(node, in.c);
            case Op::PadChannels: {
                int64_t channels = padded(entry, in.c, "before", "after", node.before);
                return {in.h, in.w, channels};
            }
            case Op::Pad: {
                int64_t rows = padded(entry, in.h, "top", "bottom", node.top);
                return {rows, padded(entry, in.w, "left", "right", node.left), in.c};
            }
            case Op::Rows: {
                int64_t count = entry.at("count").integer(1, kMostElements);
                if (in.h * in.w % count) fail("its pixels do not fill so many rows");
                return {count, in.h * in.w / count, in.c};
            }
            case Op::Shuffle:
                node.groups = entry.at("groups").integer(1, kMostElements);
                if (in.c % node.groups) fail("groups do not divide the channels");
                return in;
            case Op::Flatten:
                node.channels_first = entry.at("channels_first").integer(0, 1) == 1;
                return {1, 1, in.elements()};
            case Op::Concat: return infer_concat(node);
            case Op::Multiply:
            case Op::Add:
            case Op::Subtract:
            case Op::Divide:
            case Op::Ternary: return infer_pair(node);
            case Op::ChannelMean: return {in.h, in.w, 1};
            case Op::SampleVariance:
                node.correction = entry.at("correction").integer(0, 1);
                if (in.elements() <= node.correction) fail("a variance of a single value");
                return {1, 1, 1};
            case Op::SampleMean: return {1, 1, 1};
            case Op::Round: node.levels = entry.at("levels").integer(1, 1 << 16); return in;
            case Op::Transpose:
                if (in.h != 1) fail("only rows of values can be transposed");
                return {1, in.c, in.w};
            case Op::SquareRoot:
            case Op::Affine:
            case Op::Absolute: return in;
            default: return infer_of_tokens(entry, node);
        }
    }

    Shape infer_of_tokens(const Json& entry, Node& node) {
        std::vector<Shape> inputs;
        for (int input : node.inputs) inputs.push_back(shape(input));
        if (node.op == Op::Above && entry.find("shift"))
            node.shift = vector(entry.at("shift"), inputs[0].c);
        bool made_above = node.op == Op::BinaryMatmul && node.inputs[0] > 0 &&
                          graph_.nodes[size_t(node.inputs[0]) - 1].op == Op::Above;
        try {
            Shape result = infer_tokens(file_, entry, node, inputs);
            if (node.unit && !made_above) throw Error("its first factor is not 0 or 1");
            return result;
        } catch (const Error& why) {
            fail(why.what());
        }
    }

    Shape infer_convolution(const Json& entry, Node& node) {
        const Shape& in = shape(node.inputs[0]);
        int64_t channels = entry.at("channels").integer(1, kMostElements);
        node.groups = entry.at("groups").integer(1, kMostElements);
        if (in.c % node.groups || channels % node.groups) fail("groups do not divide the channels");
        node.weight = entry.at("weight").text();
        const Tensor& weight = file_.tensor(node.weight);
        int64_t taps = node.window.taps(), depth = in.c / node.groups;
        bool binary = node.op == Op::BinaryConv;
        node.weight_bits = weight.dtype == Dtype::U8 ? 1 : 0;
        if (!binary && node.weight_bits && entry.find("weight_bits"))
            node.weight_bits = entry.at("weight_bits").integer(1, 16);
        if (binary && !node.weight_bits) fail("its weight has the wrong type");
        // The first two factors are below 2^60 by their limits; the others are checked by division.
        int64_t most = int64_t(1) << 40;
        if (depth > most / channels || taps > most / (channels * depth)) fail("too many weights");
        int64_t count = channels * depth * taps;
        int64_t stored = node.weight_bits ? (count * node.weight_bits + 7) / 8 : count;
        if (weight.elements != stored) fail("wrong number of weights");
        if (binary && entry.find("shift"))
            node.shift = vector(entry.at("shift"), in.c);
        if (!binary && node.weight_bits && entry.find("offset"))
            node.offset = vector(entry.at("offset"), channels);
        if (const Json* pixels = entry.find("pixels")) read_pixels(*pixels, node, weight.dtype);
        return windowed(node, channels);
    }

    void read_pixels(const Json& entry, Node& node, Dtype dtype) {
        const Shape& in = shape(node.inputs[0]);
        if (node.inputs[0] != 0 || graph_.input_dims.size() != 3 || dtype != Dtype::I8 ||
            node.groups != 1 || node.op != Op::Conv)
            fail("only int8 weights on the network's input can be multiplied by bytes");
        for (const Json& item : entry.at("scale").items())
            node.pixels.scale.push_back(float(item.number()));
        for (const Json& item : entry.at("bias").items())
            node.pixels.bias.push_back(float(item.number()));
        for (const Json& item : entry.at("fill").items())
            node.pixels.fill.push_back(uint8_t(item.integer(0, 255)));
        size_t channels = size_t(in.c);
        if (node.pixels.scale.size() != channels || node.pixels.bias.size() != channels ||
            node.pixels.fill.size() != channels)
            fail("its pixels do not have one value per channel");
    }

    // A size with zeros on both sides, or, where a number is negative, without what is there.
    int64_t padded(const Json& entry, int64_t size, const char* before, const char* after,
                   int64_t& first) const {
        first = entry.at(before).integer(-size, kMostElements);
        int64_t last = entry.at(after).integer(-size, kMostElements);
        if (size + std::min<int64_t>(first, 0) + std::min<int64_t>(last, 0) < 1)
            fail("nothing is left of its input");
        return size + first + last;
    }

    Shape infer_max_pool(const Node& node) const {
        for (int axis = 0; axis < 2; ++axis)
            // Then every window has at least one tap inside the image.
            if (2 * node.window.padding[axis] > node.window.kernel[axis] ||
                (node.window.dilation[axis] > 1 && node.window.padding[axis] > 0))
                fail("padding of a maximum pool is too large");
        return windowed(node, shape(node.inputs[0]).c);
    }

    Shape infer_concat(const Node& node) const {
        Shape out = shape(node.inputs[0]);
        out.c = 0;
        for (int input : node.inputs) {
            if (shape(input).h != out.h || shape(input).w != out.w) fail("sizes differ");
            out.c += shape(input).c;
            check(out);
        }
        return out;
    }

    // The second may have a single channel, a single pixel, or both.
    Shape infer_pair(const Node& node) const {
        const Shape& a = shape(node.inputs[0]);
        const Shape& b = shape(node.inputs[1]);
        bool pixels = (a.h == b.h && a.w == b.w) || (b.h == 1 && b.w == 1);
        if (!pixels || (b.c != a.c && b.c != 1)) fail("sizes differ");
        return a;
    }

    // One value per channel, by the name of a tensor; a single value, or a number, serves all.
    std::vector<float> vector(const Json& entry, int64_t channels) const {
        if (entry.kind() == Json::Kind::Number) return filled(channels, float(entry.number()));
        std::vector<float> values = file_.floats(entry.text());
        if (values.size() == 1) values = filled(channels, values[0]);
        if (int64_t(values.size()) != channels)
            fail("tensor \"" + entry.text() + "\" does not have one value per channel");
        return values;
    }

    std::vector<float> vector_or(const Json& entry, const char* key, int64_t channels,
                                 float missing) const {
        const Json* given = entry.find(key);
        return given ? vector(*given, channels) : filled(channels, missing);
    }

    // A few bytes of a file must not become gigabytes.
    std::vector<float> filled(int64_t channels, float value) const {
        filled_ += channels;
        if (filled_ > kMostFilled) fail("too many channels share a single number");
        return std::vector<float>(size_t(channels), value);
    }

    void read_epilogue(const Json& entry, Node& node, const Shape& result) {
        node.scale = vector_or(entry, "scale", result.c, 1.0f);
        node.bias = vector_or(entry, "bias", result.c, 0.0f);
        if (const Json* residual = entry.find("residual")) {
            node.residual = known(residual->text());
            if (shape(node.residual) != result) fail("its residual has another shape");
        }
        if (const Json* activation = entry.find("activation"))
            read_activation(*activation, node.activation, result.c);
    }

    void read_activation(const Json& entry, Activation& activation, int64_t channels) {
        const std::string& kind = entry.at("kind").text();
        if (kind == "relu") {
            activation.kind = ActivationKind::Relu;
        } else if (kind == "sign") {
            activation.kind = ActivationKind::Sign;
        } else if (kind == "clamp") {
            activation.kind = ActivationKind::Clamp;
            activation.low = float(entry.at("low").number());
            activation.high = float(entry.at("high").number());
            if (!(activation.low <= activation.high)) fail("clamp has its limits in wrong order");
        } else if (kind == "between") {
            activation.kind = ActivationKind::Between;
            activation.lows = vector(entry.at("low"), channels);
            activation.highs = vector(entry.at("high"), channels);
        } else if (kind == "prelu" || kind == "rprelu") {
            bool shifted = kind == "rprelu";
            activation.kind = shifted ? ActivationKind::Rprelu : ActivationKind::Prelu;
            activation.slope = vector(entry.at("slope"), channels);
            if (shifted) {
                activation.shift_in = vector(entry.at("shift_in"), channels);
                activation.shift_out = vector(entry.at("shift_out"), channels);
            }
        } else {
            fail("unknown activation \"" + kind + "\"");
        }
    }

    const Container& file_;
    Graph graph_;
    std::map<std::string, int> names_;
    std::string where_;
    mutable int64_t filled_ = 0;  // channels so far that share a number of the file
};

}  // namespace

int64_t Window::result(int axis, int64_t size) const {
    int64_t span = dilation[axis] * (kernel[axis] - 1) + 1;
    int64_t room = size + 2 * padding[axis] - span, step = stride[axis];
    if (!ceiling) return room < 0 ? 0 : room / step + 1;
    int64_t count = room < 0 ? 1 - -room / step : (room + step - 1) / step + 1;
    if ((count - 1) * step >= size + padding[axis]) --count;  // it begins beyond the edge
    return std::max<int64_t>(count, 0);
}

const char* op_name(Op op) {
    for (const auto& entry : kOps)
        if (entry.second == op) return entry.first.c_str();
    return "";
}

Graph read_graph(const Container& file) { return GraphReader(file).read(); }

}  // namespace surge
