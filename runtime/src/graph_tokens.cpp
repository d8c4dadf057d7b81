// Operators of tokens: their attributes and the shapes they make.
#include <cmath>

#include "error.hpp"
#include "graph.hpp"
#include "json.hpp"

namespace surge {
namespace {

constexpr int64_t kMostRows = int64_t(1) << 24;  // numbers of rows are exact in fp32
constexpr int64_t kMostWeights = int64_t(1) << 31;

float finite(const Json& entry, const char* key) {
    float value = float(entry.at(key).number());
    if (!std::isfinite(value)) throw Error(std::string(key) + " is not finite");
    return value;
}

// A table of numbers with so many columns, and one factor per row.
void read_table(const Container& file, const Json& entry, Node& node, int64_t channels) {
    int64_t rows = node.rows = entry.at("rows").integer(1, kMostRows);
    node.weight = entry.at("weight").text();
    const Tensor& weight = file.tensor(node.weight);
    if (channels > kMostWeights / rows) throw Error("too many weights");
    node.weight_bits = weight.dtype == Dtype::U8 ? 1 : 0;
    int64_t count = rows * channels, stored = node.weight_bits ? (count + 7) / 8 : count;
    if (weight.elements != stored) throw Error("wrong number of weights");
    if (const Json* scale = entry.find("row_scale")) {
        node.row_scale = file.floats(scale->text());
        if (int64_t(node.row_scale.size()) != rows)
            throw Error("its table does not have one scale per row");
    } else if (node.weight_bits) {
        throw Error("bits need one scale per row");
    }
}

Shape infer_embedding(const Container& file, const Json& entry, Node& node, const Shape& in) {
    if (in.h != 1 || in.w != 1) throw Error("only a vector of numbers can be looked up");
    int64_t channels = entry.at("channels").integer(1, kMostRows);
    read_table(file, entry, node, channels);
    return {1, in.c, channels};
}

Shape infer_add_rows(const Container& file, const Json& entry, Node& node, const Shape& in) {
    if (in.h != 1) throw Error("only rows of tokens can be added to");
    read_table(file, entry, node, in.c);
    if (node.weight_bits) throw Error("its weight has the wrong type");
    node.index = entry.at("first").integer(0, kMostRows);
    if (in.w > node.rows - node.index) throw Error("its table has too few rows");
    return in;
}

Shape infer_prepend_rows(const Container& file, const Json& entry, Node& node, const Shape& in) {
    if (in.h != 1) throw Error("only rows of tokens can be put behind others");
    read_table(file, entry, node, in.c);
    if (node.weight_bits) throw Error("its weight has the wrong type");
    return {1, node.rows + in.w, in.c};
}

Shape infer_matmul(const Json& entry, Node& node, const Shape& a, const Shape& b) {
    node.heads = entry.at("heads").integer(1, kMostRows);
    node.transposed = entry.at("transposed").integer(0, 1) == 1;
    if (node.op == Op::BinaryMatmul) node.unit = entry.at("unit").integer(0, 1) == 1;
    if (b.h != 1 || b.c % node.heads) throw Error("heads do not divide the channels");
    // Sums of products must fit into 32 bits, and into the whole numbers of fp32.
    if (a.c >= kMostRows || b.w >= kMostRows) throw Error("its factors are too large");
    if (node.transposed) {
        if (a.h != 1 || a.c != b.c) throw Error("sizes differ");
        return {node.heads, a.w, b.w};
    }
    if (a.h != node.heads || a.c != b.w) throw Error("sizes differ");
    return {1, a.w, b.c};
}

}  // namespace

Shape infer_tokens(const Container& file, const Json& entry, Node& node,
                   const std::vector<Shape>& inputs) {
    const Shape& in = inputs[0];
    switch (node.op) {
        case Op::Embedding: return infer_embedding(file, entry, node, in);
        case Op::AddRows: return infer_add_rows(file, entry, node, in);
        case Op::PrependRows: return infer_prepend_rows(file, entry, node, in);
        case Op::Select:
            if (in.h != 1) throw Error("only a token can be selected");
            node.index = entry.at("index").integer(0, in.w - 1);
            return {1, 1, in.c};
        case Op::Equals: node.number = finite(entry, "number"); return in;
        case Op::Above: node.number = finite(entry, "limit"); return in;
        case Op::LayerNorm:
            node.number = finite(entry, "eps");
            if (node.number < 0.0f) throw Error("eps is negative");
            return in;
        case Op::Softmax:
            if (inputs.size() == 2 && inputs[1] != Shape{1, 1, in.c})
                throw Error("what is added to its input is not one value per channel");
            return in;
        case Op::Matmul:
        case Op::BinaryMatmul: return infer_matmul(entry, node, in, inputs[1]);
        default: return in;
    }
}

}  // namespace surge
