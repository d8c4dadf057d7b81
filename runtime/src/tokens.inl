// Loops that every tier compiles for itself, inside its own unnamed namespace. Sums run in sixteen
// lanes, value i in lane i % 16, and the lanes are added in halves: the compiler may use vectors of
// any width without changing a bit.

constexpr int64_t kSumLanes = 16;

template <typename Each>
inline void by_lanes(int64_t count, Each each) {
    int64_t i = 0;
    for (; i + kSumLanes <= count; i += kSumLanes)
#pragma GCC ivdep
        for (int64_t lane = 0; lane < kSumLanes; ++lane) each(i + lane, lane);
    for (int64_t lane = 0; i < count; ++i, ++lane) each(i, lane);
}

inline float lane_sum(const float* lanes) {
    float sums[kSumLanes];
    for (int64_t i = 0; i < kSumLanes; ++i) sums[i] = lanes[i];
    for (int64_t half = kSumLanes / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
    return sums[0];
}

inline float lane_largest(const float* lanes) {
    float best[kSumLanes];
    for (int64_t i = 0; i < kSumLanes; ++i) best[i] = lanes[i];
    for (int64_t half = kSumLanes / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; ++i)
            best[i] = best[i + half] > best[i] ? best[i + half] : best[i];
    return best[0];
}

// e^x = 2^k e^r with |r| <= ln(2) / 2: k by rounding, a polynomial for e^r, k into the exponent.
// Below -75 and for a NaN it is 0, so that no share of it is denormal; above 88 it stays.
inline float exp_of(float x) {
    constexpr float kLowest = -75.0f, kHighest = 88.0f, kRounding = 12582912.0f;
    float t = x > kLowest ? x : kLowest;
    t = t < kHighest ? t : kHighest;
    float shifted = t * 1.44269502f + kRounding;
    uint32_t bits;
    __builtin_memcpy(&bits, &shifted, 4);
    float k = shifted - kRounding;
    float r = t - k * 0.693359375f;  // ln 2 in two parts: the first product is exact
    r = r - k * -2.12194440e-4f;
    float p = 0.0013951717f;
    p = p * r + 0.0083695985f;
    p = p * r + 0.041666187f;
    p = p * r + 0.16666512f;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    uint32_t exponent = (bits + 127u) << 23;
    float power;
    __builtin_memcpy(&power, &exponent, 4);
    return x > kLowest ? p * power : 0.0f;
}

// Near zero x + x^3 q(x^2), elsewhere 1 - 2 / (e^2x + 1).
inline float tanh_of(float x) {
    float size = x < 0.0f ? -x : x;
    float square = x * x;
    float q = -0.0057170368f;
    q = q * square + 0.020650579f;
    q = q * square + -0.053743497f;
    q = q * square + 0.13331491f;
    q = q * square + -0.33333284f;
    float near = x + x * (square * q);
    float far = 1.0f - 2.0f / (exp_of(size + size) + 1.0f);
    far = x < 0.0f ? -far : far;
    float result = size < 0.625f ? near : far;
    return x == x ? result : x;
}

// 1 / (1 + e^-x). As in torch it is 0 where e^-x is beyond fp32.
inline float sigmoid_of(float x) {
    float result = x < -88.72f ? 0.0f : 1.0f / (1.0f + exp_of(-x));
    return x == x ? result : x;
}

// x / 2 (1 + erf(x / sqrt 2)) with erf z = 1 - s e^(-z^2 + P(s)), s = 1 / (1 + z / 2). As in torch
// the sum 1 + erf is rounded, so that far below zero the result is -0.
inline float gelu_of(float x) {
    float z = x * 0.70710677f;
    float size = z < 0.0f ? -z : z;
    float s = 1.0f / (1.0f + 0.5f * size);
    float p = 0.069477558f;
    p = p * s + -0.25178209f;
    p = p * s + 0.096227258f;
    p = p * s + 0.79687065f;
    p = p * s + -1.3976893f;
    p = p * s + 0.75542891f;
    p = p * s + -0.24507053f;
    p = p * s + 0.45134032f;
    p = p * s + 0.99016845f;
    p = p * s + -1.2649711f;
    float erf = 1.0f - s * exp_of(p - size * size);
    erf = z < 0.0f ? -erf : erf;
    float result = (x * 0.5f) * (1.0f + erf);
    return x == x ? result : x;
}

void norm_row(const NormRow& call) {
    const NormRow row = call;
    const float count = float(row.channels);
    for (int64_t p = 0; p < row.pixels; ++p) {
        const float* x = row.input + p * row.channels;
        float* out = row.output + p * row.channels;
        float lanes[kSumLanes] = {};
        by_lanes(row.channels, [&](int64_t i, int64_t lane) { lanes[lane] = lanes[lane] + x[i]; });
        const float mean = lane_sum(lanes) / count;
        for (float& lane : lanes) lane = 0.0f;
        by_lanes(row.channels, [&](int64_t i, int64_t lane) {
            float away = x[i] - mean;
            lanes[lane] = lanes[lane] + away * away;
        });
        const float factor = 1.0f / __builtin_sqrtf(lane_sum(lanes) / count + row.eps);
#pragma GCC ivdep
        for (int64_t i = 0; i < row.channels; ++i) out[i] = (x[i] - mean) * factor;
    }
}

void softmax_row(const SoftmaxRow& call) {
    const SoftmaxRow row = call;
    for (int64_t p = 0; p < row.pixels; ++p) {
        const float* x = row.input + p * row.channels;
        float* out = row.output + p * row.channels;
        const float* term = row.term;
        float lanes[kSumLanes];
        for (float& lane : lanes) lane = -__builtin_huge_valf();
        const float* t = x;
        if (term) {
#pragma GCC ivdep
            for (int64_t i = 0; i < row.channels; ++i) out[i] = x[i] + term[i];
            t = out;
        }
        by_lanes(row.channels, [&](int64_t i, int64_t lane) {
            lanes[lane] = t[i] > lanes[lane] ? t[i] : lanes[lane];
        });
        const float largest = lane_largest(lanes);
        for (float& lane : lanes) lane = 0.0f;
#pragma GCC ivdep
        for (int64_t i = 0; i < row.channels; ++i) out[i] = exp_of(t[i] - largest);
        by_lanes(row.channels,
                 [&](int64_t i, int64_t lane) { lanes[lane] = lanes[lane] + out[i]; });
        const float share = 1.0f / lane_sum(lanes);
        for (int64_t i = 0; i < row.channels; ++i) out[i] = out[i] * share;
    }
}

void gelu(const float* input, int64_t count, float* output) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) output[i] = gelu_of(input[i]);
}

void tanh_values(const float* input, int64_t count, float* output) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) output[i] = tanh_of(input[i]);
}

void sigmoid(const float* input, int64_t count, float* output) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) output[i] = sigmoid_of(input[i]);
}

// Bits of up to 32 channels, one by one.
inline uint32_t above_word(const float* x, const float* shift, float limit, int64_t count) {
    uint32_t word = 0;
    for (int64_t c = 0; c < count; ++c) {
        float t = shift ? x[c] + shift[c] : x[c];
        word |= uint32_t(t > limit) << c;
    }
    return word;
}

// Calls `word(x, shift, limit, count)` for every run of up to 32 channels.
template <typename Word>
inline void above_pixels(const AboveRow& call, Word word) {
    const AboveRow row = call;
    const float* x = row.input;
    uint32_t* out = row.bits;
    for (int64_t p = 0; p < row.pixels; ++p) {
        const float* shift = row.shift;
        for (int64_t g = 0; g < row.groups; ++g) {
            int64_t left = row.channels;
            for (int64_t w = 0; w < row.words; ++w, left -= kWordBits, ++out) {
                int64_t count = left < kWordBits ? left : kWordBits;
                *out = word(x, shift, row.limit, count);
                x += count;
                if (shift) shift += count;
            }
        }
    }
}

void products(const ProductRow& call) {
    const ProductRow row = call;
    for (int64_t p = 0; p < row.pixels; ++p) {
        int32_t* counts = row.counts + p * row.filters;
#pragma GCC ivdep
        for (int64_t f = 0; f < row.filters; ++f)
            counts[f] = row.base[f] - row.factor * counts[f];
    }
}
