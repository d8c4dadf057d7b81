// Loops that every tier compiles for itself, inside its own unnamed namespace: the compiler
// vectorises them with the tier's instructions. Contraction is off, so a product and a sum are two
// roundings everywhere.

inline float clamp_low(float low, float t) { return low > t ? low : t; }    // NaN stays NaN
inline float clamp_high(float high, float t) { return high < t ? high : t; }

template <Finish kind>
inline float activate(const FinishRow& row, int64_t c, float t) {
    if (kind == Finish::Relu) return clamp_low(0.0f, t);
    if (kind == Finish::Clamp) return clamp_high(row.high, clamp_low(row.low, t));
    if (kind == Finish::Sign) return t >= 0.0f ? 1.0f : -1.0f;
    if (kind == Finish::Prelu) return t >= 0.0f ? t : row.slope[c] * t;
    if (kind == Finish::Rprelu) {
        float u = t + row.shift_in[c];
        return (u >= 0.0f ? u : row.slope[c] * u) + row.shift_out[c];
    }
    return t;
}

template <Finish kind, bool binary, bool added>
void finish_pixels(const FinishRow& call) {
    // A copy, so that the compiler sees that no store to the output can change it.
    const FinishRow row = call;
    for (int64_t p = 0; p < row.pixels; ++p) {
        const int32_t* counts = binary ? row.counts + p * row.value_pitch : nullptr;
        const int32_t* base = binary ? row.base + row.classes[p] * row.base_pitch : nullptr;
        const float* sums = binary ? nullptr : row.sums + p * row.value_pitch;
        const float* residual = added ? row.residual + p * row.output_pitch : nullptr;
        float* output = row.output + p * row.output_pitch;
        // Output and residual may be the same memory; that is element by element, so safe.
#pragma GCC ivdep
        for (int64_t c = 0; c < row.channels; ++c) {
            float value = binary ? float(base[c] - 2 * counts[c]) : sums[c];
            float t = value * row.scale[c];
            t = t + row.bias[c];
            if (added) t = t + residual[c];
            output[c] = activate<kind>(row, c, t);
        }
    }
}

template <Finish kind>
void finish_kind(const FinishRow& row) {
    if (row.counts)
        row.residual ? finish_pixels<kind, true, true>(row) : finish_pixels<kind, true, false>(row);
    else
        row.residual ? finish_pixels<kind, false, true>(row)
                     : finish_pixels<kind, false, false>(row);
}

void finish_row(const FinishRow& row) {
    switch (row.kind) {
        case Finish::None: return finish_kind<Finish::None>(row);
        case Finish::Relu: return finish_kind<Finish::Relu>(row);
        case Finish::Clamp: return finish_kind<Finish::Clamp>(row);
        case Finish::Sign: return finish_kind<Finish::Sign>(row);
        case Finish::Prelu: return finish_kind<Finish::Prelu>(row);
        case Finish::Rprelu: return finish_kind<Finish::Rprelu>(row);
    }
}

// Bits of up to 64 channels, one by one: the tail of every tier, and all of the scalar one.
inline uint64_t sign_word(const float* x, const float* shift, int64_t count) {
    uint64_t word = 0;
    for (int64_t c = 0; c < count; ++c) {
        float t = shift ? x[c] + shift[c] : x[c];
        word |= uint64_t(t >= 0.0f) << c;
    }
    return word;
}

// Calls `wide(x, shift)` for every full run of 64 channels, `tail(x, shift, count)` for the last.
template <typename Wide, typename Tail>
inline void sign_pixels(const SignRow& row, Wide wide, Tail tail) {
    const float* x = row.input;
    uint64_t* out = row.bits;
    for (int64_t p = 0; p < row.pixels; ++p) {
        const float* shift = row.shift;
        for (int64_t g = 0; g < row.groups; ++g) {
            int64_t left = row.channels;
            for (int64_t w = 0; w < row.words; ++w, left -= 64, ++out) {
                int64_t count = left < 64 ? left : 64;
                *out = count == 64 ? wide(x, shift) : tail(x, shift, count);
                x += count;
                if (shift) shift += count;
            }
        }
    }
}
