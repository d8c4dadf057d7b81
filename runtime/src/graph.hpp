// The network as the file describes it: checked, with all shapes known, nothing repacked yet.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "container.hpp"

namespace surge {

class Json;

// One sample of a value: rows, columns, channels (NHWC). Vectors have one row and one column.
struct Shape {
    int64_t h = 1, w = 1, c = 1;
    int64_t elements() const { return h * w * c; }
    bool operator==(const Shape& o) const { return h == o.h && w == o.w && c == o.c; }
    bool operator!=(const Shape& o) const { return !(*this == o); }
};

enum class Op {
    Conv,
    BinaryConv,
    Affine,
    MaxPool,
    AvgPool,
    PadChannels,
    Pad,
    Subsample,
    Flatten,
    Rows,
    Shuffle,
    Concat,
    Multiply,
    Absolute,
    ChannelMean,
    Add,
    Subtract,
    Divide,
    SquareRoot,
    SampleMean,
    SampleVariance,
    Round,
    Ternary,
    Transpose,
    // Of tokens: see graph_tokens.cpp.
    Embedding,
    AddRows,
    PrependRows,
    Select,
    Equals,
    Above,
    LayerNorm,
    Softmax,
    Gelu,
    Tanh,
    Sigmoid,
    Matmul,
    BinaryMatmul,
};

enum class ActivationKind { None, Relu, Clamp, Sign, Prelu, Rprelu, Between };

struct Activation {
    ActivationKind kind = ActivationKind::None;
    float low = 0, high = 0;
    std::vector<float> slope, shift_in, shift_out;  // one value per channel
    std::vector<float> lows, highs;
};

// How the pixels of an input become bytes: rint(x * scale + bias); `fill` stands beyond the border.
struct Pixels {
    std::vector<float> scale, bias;
    std::vector<uint8_t> fill;
};

// How an operator walks over rows and columns.
struct Window {
    int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
    bool ceiling = false;  // whether the last window may hang over the edge
    // Size of the result along an axis, or 0 if the window does not fit.
    int64_t result(int axis, int64_t size) const;
    int64_t taps() const { return kernel[0] * kernel[1]; }
};

struct Node {
    Op op = Op::Affine;
    std::string name;
    std::vector<int> inputs;  // indices of values
    int output = -1;
    int residual = -1;
    Window window;
    int64_t groups = 1;
    int64_t divisor = 0;      // of an average; 0: the number of taps inside the image
    int64_t before = 0;       // zero channels in front, or, negative, channels left out
    int64_t top = 0, left = 0;  // the same of rows and columns
    bool channels_first = true;  // order of a flattened value
    int64_t correction = 0;   // of a variance
    int64_t levels = 1;       // of a rounded value
    int64_t index = 0;        // of a selected token, or of the first row of a table
    int64_t heads = 1;        // of a product of two values
    bool transposed = false;  // whether the rows of both are multiplied, not rows with columns
    bool unit = false;        // whether the first factor is 0 or 1
    float number = 0;         // limit of `above`, eps of a norm, what `equals` compares with
    int64_t rows = 0;         // of a table
    std::vector<float> row_scale;
    int64_t weight_bits = 0;  // of a real convolution with weights of few bits
    std::vector<float> offset;  // of such weights, by filter
    Pixels pixels;            // not empty: computed in whole numbers
    std::string weight;       // name of a tensor
    std::vector<float> shift; // added before the sign; empty: none
    std::vector<float> scale, bias;
    Activation activation;

    // Of two computed values.
    bool is_product() const { return op == Op::Matmul || op == Op::BinaryMatmul; }
    bool by_bytes() const { return !pixels.scale.empty(); }
    bool has_epilogue() const {
        return op == Op::Conv || op == Op::BinaryConv || op == Op::Affine ||
               op == Op::LayerNorm || is_product();
    }
};

struct Graph {
    std::vector<Shape> values;  // value 0 is the input
    std::vector<Node> nodes;    // in running order
    int output = 0;
    std::vector<int64_t> input_dims, output_dims;  // of one sample, in torch's order
};

// What an operator of tokens makes of inputs of these shapes; its attributes are read and checked.
// Others give the shape of their first input. What is wrong is said in an Error.
Shape infer_tokens(const Container& file, const Json& entry, Node& node,
                   const std::vector<Shape>& inputs);

Graph read_graph(const Container& file);
// As the file writes it: "conv2d", ...
const char* op_name(Op op);

}  // namespace surge
