// Rows of pixels in tiles, for the tiers that take one block of filters at a time: what a tile does
// (binary_tile, float_tile) and how many pixels fill their registers (kFloatPixels) is theirs.

void binary_row(const BinaryRow& row) {
    int64_t filters = row.blocks * kLanes;
    for (int64_t block = 0; block < row.blocks; ++block) {
        const uint32_t* weights = row.weights + block * row.words * kLanes;
        int32_t* counts = row.counts + block * kLanes;
        int64_t p = 0;
        for (; p + 2 <= row.pixels; p += 2)
            binary_tile<2>(row, row.input + p * row.step, weights, counts + p * filters);
        for (; p < row.pixels; ++p)
            binary_tile<1>(row, row.input + p * row.step, weights, counts + p * filters);
    }
}

template <typename Weight>
void float_weights(const FloatRow& row) {
    int64_t pitch = row.blocks * kLanes;
    for (int64_t b = 0; b < row.blocks; ++b) {
        const Weight* weights =
            static_cast<const Weight*>(row.weights) + b * row.runs * row.length * kLanes;
        float* sums = row.sums + b * kLanes;
        int64_t p = 0;
        for (; p + kFloatPixels <= row.pixels; p += kFloatPixels)
            float_tile<kFloatPixels>(row, row.input + p * row.step, weights, sums + p * pitch);
        for (; p < row.pixels; ++p)
            float_tile<1>(row, row.input + p * row.step, weights, sums + p * pitch);
    }
}

void float_row(const FloatRow& row) {
    switch (row.kind) {
        case Weights::F32: return float_weights<float>(row);
        case Weights::F16: return float_weights<uint16_t>(row);
        case Weights::I8: return float_weights<int8_t>(row);
    }
}
