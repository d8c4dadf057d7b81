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
    if (kind == Finish::Between)
        return t >= row.between_low[c] && t <= row.between_high[c] ? 1.0f : -1.0f;
    return t;
}

enum class Value { Real, Whole, Binary };

template <Finish kind, Value type, bool added>
void finish_pixels(const FinishRow& call) {
    // A copy, so that the compiler sees that no store to the output can change it.
    const FinishRow row = call;
    constexpr bool binary = type == Value::Binary, real = type == Value::Real;
    for (int64_t p = 0; p < row.pixels; ++p) {
        const int32_t* counts = real ? nullptr : row.counts + p * row.value_pitch;
        const int32_t* base = binary ? row.base + row.classes[p] * row.base_pitch : nullptr;
        const float* sums = real ? row.sums + p * row.value_pitch : nullptr;
        const float* residual = added ? row.residual + p * row.output_pitch : nullptr;
        float* output = row.output + p * row.output_pitch;
        // Output and residual may be the same memory; that is element by element, so safe.
#pragma GCC ivdep
        for (int64_t c = 0; c < row.channels; ++c) {
            float value = real     ? sums[c]
                          : binary ? float(base[c] - 2 * counts[c])
                                   : float(counts[c]);
            float t = value * row.scale[c];
            t = t + row.bias[c];
            if (added) t = t + residual[c];
            output[c] = activate<kind>(row, c, t);
        }
    }
}

template <Finish kind, Value type>
void finish_value(const FinishRow& row) {
    row.residual ? finish_pixels<kind, type, true>(row) : finish_pixels<kind, type, false>(row);
}

template <Finish kind>
void finish_kind(const FinishRow& row) {
    if (!row.counts) return finish_value<kind, Value::Real>(row);
    row.base ? finish_value<kind, Value::Binary>(row) : finish_value<kind, Value::Whole>(row);
}

void finish_row(const FinishRow& row) {
    switch (row.kind) {
        case Finish::None: return finish_kind<Finish::None>(row);
        case Finish::Relu: return finish_kind<Finish::Relu>(row);
        case Finish::Clamp: return finish_kind<Finish::Clamp>(row);
        case Finish::Sign: return finish_kind<Finish::Sign>(row);
        case Finish::Prelu: return finish_kind<Finish::Prelu>(row);
        case Finish::Rprelu: return finish_kind<Finish::Rprelu>(row);
        case Finish::Between: return finish_kind<Finish::Between>(row);
    }
}

// Bits of up to 32 channels, one by one: the tail of every tier, and all of the scalar one.
inline uint32_t sign_word(const float* x, const float* shift, int64_t count) {
    uint32_t word = 0;
    for (int64_t c = 0; c < count; ++c) {
        float t = shift ? x[c] + shift[c] : x[c];
        word |= uint32_t(t >= 0.0f) << c;
    }
    return word;
}

// Calls `word(x, shift, count)` for every run of up to 32 channels.
template <typename Word>
inline void sign_pixels(const SignRow& row, Word word) {
    const float* x = row.input;
    uint32_t* out = row.bits;
    for (int64_t p = 0; p < row.pixels; ++p) {
        const float* shift = row.shift;
        for (int64_t g = 0; g < row.groups; ++g) {
            int64_t left = row.channels;
            for (int64_t w = 0; w < row.words; ++w, left -= kWordBits, ++out) {
                int64_t count = left < kWordBits ? left : kWordBits;
                *out = word(x, shift, count);
                x += count;
                if (shift) shift += count;
            }
        }
    }
}

// Bits of a binary row by comparing whole numbers.
inline void threshold_bits(const FinishRow& end) {
    for (int64_t p = 0; p < end.pixels; ++p) {
        const int32_t* counts = end.counts + p * end.value_pitch;
        const int32_t* base = end.base + end.classes[p] * end.base_pitch;
        const uint32_t* span = end.span + end.classes[p] * end.base_pitch;
        uint32_t* bits = end.bits + p * end.bits_pitch;
        for (int64_t c = 0; c < end.channels; c += kWordBits) {
            int64_t left = end.channels - c < kWordBits ? end.channels - c : kWordBits;
            uint32_t word = 0;
            for (int64_t i = c; i < c + left; ++i)
                word |= uint32_t(uint32_t(base[i] - counts[i]) <= span[i]) << (i - c);
            bits[c / kWordBits] = word;
        }
    }
}

// A binary row and its end, one after the other.
template <typename Count, typename Signs>
inline void binary_then_finish(const BinaryRow& row, const FinishRow& end, Count count,
                               Signs signs) {
    count(row);
    FinishRow rest = end;
    rest.counts = row.counts;
    rest.value_pitch = row.blocks * kLanes;
    if (end.span) return threshold_bits(rest);
    finish_row(rest);
    if (!end.bits) return;
    SignRow signed_row = {};
    signed_row.input = end.output;
    signed_row.pixels = end.pixels;
    signed_row.groups = 1;
    signed_row.channels = end.channels;
    signed_row.words = end.bits_pitch;
    signed_row.shift = end.shift;
    signed_row.bits = end.bits;
    signs(signed_row);
}

constexpr float kLowest = -__builtin_huge_valf();
inline float larger(float a, float b) { return a > b ? a : b; }  // a NaN as a is passed over

// Taps of kLanes channels side by side. As a vector: the compiler would rather add taps in parallel.
inline void depth_block(const uint32_t* input, const int32_t* offsets, int64_t taps,
                        const uint32_t* weights, int32_t* out) {
    typedef uint32_t Lanes __attribute__((vector_size(kLanes * 4)));
    Lanes sum = {};
    for (int64_t k = 0; k < taps; ++k) {
        Lanes x, w;
        __builtin_memcpy(&x, input + offsets[k], sizeof x);
        __builtin_memcpy(&w, weights + k * kLanes, sizeof w);
        sum = sum + (x ^ w);
    }
    __builtin_memcpy(out, &sum, sizeof sum);
}

inline void depth_block(const float* input, const int32_t* offsets, int64_t taps,
                        const float* weights, float* out) {
    float lanes[kLanes] = {};
    for (int64_t k = 0; k < taps; ++k) {
        const float *x = input + offsets[k], *w = weights + k * kLanes;
#pragma GCC unroll 16
        for (int64_t i = 0; i < kLanes; ++i) lanes[i] = __builtin_fmaf(x[i], w[i], lanes[i]);
    }
    for (int64_t i = 0; i < kLanes; ++i) out[i] = lanes[i];
}

inline int32_t depth_add(int32_t sum, uint32_t x, uint32_t w) { return sum + int32_t(x ^ w); }
inline float depth_add(float sum, float x, float w) { return __builtin_fmaf(x, w, sum); }

template <typename Row, typename Word, typename Sum>
inline void depth_pixels(const Row& call, const Word* weights, Sum* sums) {
    const Row row = call;
    const int64_t blocks = (row.channels + kLanes - 1) / kLanes;
    for (int64_t p = 0; p < row.pixels; ++p)
        for (int64_t b = 0; b < blocks; ++b) {
            const Word *input = row.input + p * row.step + b * kLanes;
            const Word *w = weights + b * row.taps * kLanes;
            Sum* out = sums + (p * blocks + b) * kLanes;
            const int64_t left = row.channels - b * kLanes;
            if (left >= kLanes) {
                depth_block(input, row.offsets, row.taps, w, out);
                continue;
            }
            for (int64_t i = 0; i < left; ++i) {
                Sum sum = {};
                for (int64_t k = 0; k < row.taps; ++k)
                    sum = depth_add(sum, input[row.offsets[k] + i], w[k * kLanes + i]);
                out[i] = sum;
            }
        }
}

void binary_depth_row(const BinaryDepthRow& row) { depth_pixels(row, row.weights, row.counts); }

void float_depth_row(const FloatDepthRow& row) { depth_pixels(row, row.weights, row.sums); }

void max_row(const MaxRow& row) {
    int64_t values = row.width * row.channels, channels = row.channels;
    const float* column = row.rows[0];
    if (row.count > 1) {
        float* highest = row.column;
        const float *a = row.rows[0], *b = row.rows[1];
        for (int64_t i = 0; i < values; ++i) highest[i] = larger(b[i], larger(a[i], kLowest));
        for (int64_t r = 2; r < row.count; ++r) {
            const float* next = row.rows[r];
            for (int64_t i = 0; i < values; ++i) highest[i] = larger(next[i], highest[i]);
        }
        column = highest;
    }
    for (int64_t p = 0; p < row.pixels; ++p) {
        float* out = row.output + p * channels;
        bool first = true;
        for (int64_t k = 0; k < row.kernel; ++k) {
            int64_t x = p * row.stride - row.padding + k * row.dilation;
            if (x < 0 || x >= row.width) continue;
            const float* tap = column + x * channels;
            if (first)
                for (int64_t c = 0; c < channels; ++c) out[c] = larger(tap[c], kLowest);
            else
#pragma GCC ivdep
                for (int64_t c = 0; c < channels; ++c) out[c] = larger(tap[c], out[c]);
            first = false;
        }
    }
}

void average_row(const AverageRow& call) {
    const AverageRow row = call;
    const int64_t channels = row.channels;
    for (int64_t p = 0; p < row.pixels; ++p) {
        float* out = row.output + p * channels;
        int64_t inside = 0;
        for (int64_t ky = 0; ky < row.kernel[0]; ++ky) {
            int64_t y = row.top + ky * row.dilation[0];
            if (y < 0 || y >= row.height) continue;
            for (int64_t kx = 0; kx < row.kernel[1]; ++kx) {
                int64_t x = p * row.stride[1] - row.padding[1] + kx * row.dilation[1];
                if (x < 0 || x >= row.width) continue;
                const float* tap = row.image + (y * row.width + x) * channels;
                if (inside++ == 0)
                    for (int64_t c = 0; c < channels; ++c) out[c] = 0.0f + tap[c];
                else
#pragma GCC ivdep
                    for (int64_t c = 0; c < channels; ++c) out[c] = out[c] + tap[c];
            }
        }
        if (inside == 0)
            for (int64_t c = 0; c < channels; ++c) out[c] = 0.0f;
        const float divisor = float(row.divisor ? row.divisor : inside);
        for (int64_t c = 0; c < channels; ++c) out[c] = out[c] / divisor;
    }
}

// Adding 2^23 and taking it away again rounds to the nearest whole number, the even one of two.
inline uint32_t to_byte(float x, float scale, float bias) {
    float t = x * scale;
    t = t + bias;
    t = t > 0.0f ? t : 0.0f;
    t = t < 255.0f ? t : 255.0f;
    t = t + 8388608.0f;
    t = t - 8388608.0f;
    return uint32_t(int32_t(t));
}

void byte_pixels(const BytePixels& row) {
    uint32_t* out = reinterpret_cast<uint32_t*>(row.output);
    if (row.channels == 3 && row.quads == 1) {
        const float *a = row.input, *b = a + row.plane, *c = b + row.plane;
        const float sa = row.scale[0], sb = row.scale[1], sc = row.scale[2];
        const float ba = row.bias[0], bb = row.bias[1], bc = row.bias[2];
#pragma GCC ivdep
        for (int64_t p = 0; p < row.pixels; ++p)
            out[p] = to_byte(a[p], sa, ba) | to_byte(b[p], sb, bb) << 8 |
                     to_byte(c[p], sc, bc) << 16;
        return;
    }
    for (int64_t p = 0; p < row.pixels; ++p)
        for (int64_t q = 0; q < row.quads; ++q) {
            uint32_t word = 0;
            for (int64_t i = 0; i < 4 && 4 * q + i < row.channels; ++i) {
                int64_t c = 4 * q + i;
                word |= to_byte(row.input[c * row.plane + p], row.scale[c], row.bias[c]) << 8 * i;
            }
            out[p * row.quads + q] = word;
        }
}

void add_plane(const PlaneSums& call) {
    const PlaneSums plane = call;
    for (int64_t p = 0; p < plane.pixels; ++p) {
        const int32_t* counts = plane.counts + p * plane.filters;
        int32_t* sums = plane.sums + p * plane.filters;
#pragma GCC ivdep
        for (int64_t f = 0; f < plane.filters; ++f)
            sums[f] += plane.factor * (plane.ones[f] - counts[f]);
    }
}

inline uint32_t digits_of(float x, bool ternary) {
    if (ternary) return uint32_t(x > 0.0f) | uint32_t(x < 0.0f) << 1;
    return uint32_t(int32_t(x > 0.0f ? x : 0.0f));
}

// Calls word(x, count, plane) for every run of up to 32 channels.
template <typename Word>
inline void plane_words(const PlaneBits& row, Word word) {
    const float* x = row.input;
    uint32_t* out = row.bits;
    for (int64_t p = 0; p < row.pixels; ++p) {
        int64_t left = row.channels;
        for (int64_t w = 0; w < row.words; ++w, left -= kWordBits, ++out) {
            int64_t count = left < kWordBits ? left : kWordBits;
            for (int64_t plane = 0; plane < row.planes; ++plane)
                out[plane * row.pitch] = word(x, count, plane);
            x += count;
        }
    }
}

inline void plane_bits_one_by_one(const PlaneBits& row) {
    plane_words(row, [&](const float* x, int64_t count, int64_t plane) {
        uint32_t word = 0;
        for (int64_t c = 0; c < count; ++c)
            word |= (digits_of(x[c], row.ternary) >> plane & 1u) << c;
        return word;
    });
}
