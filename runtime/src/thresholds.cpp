#include "thresholds.hpp"

#include <algorithm>
#include <limits>

namespace surge {
namespace {

constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

// The epilogue as the kernels compute it, for one value.
struct Epilogue {
    const Node& node;
    const std::vector<float>& shift;
    const float* limit;

    bool positive(size_t c, int64_t sum) const {
        float t = float(sum) * node.scale[c];
        t = t + node.bias[c];
        t = activated(c, t);
        if (!shift.empty()) t = t + shift[c];
        return limit ? t > *limit : t >= 0.0f;
    }

    float activated(size_t c, float t) const {
        const Activation& a = node.activation;
        switch (a.kind) {
            case ActivationKind::None: return t;
            case ActivationKind::Relu: return 0.0f > t ? 0.0f : t;
            case ActivationKind::Clamp:
                t = a.low > t ? a.low : t;
                return a.high < t ? a.high : t;
            case ActivationKind::Sign: return t >= 0.0f ? 1.0f : -1.0f;
            case ActivationKind::Between:
                return t >= a.lows[c] && t <= a.highs[c] ? 1.0f : -1.0f;
            case ActivationKind::Prelu: return t >= 0.0f ? t : a.slope[c] * t;
            case ActivationKind::Rprelu: {
                float u = t + a.shift_in[c];
                return (u >= 0.0f ? u : a.slope[c] * u) + a.shift_out[c];
            }
        }
        return t;
    }

    // All roundings are monotone, so what remains is the slope for negative values.
    bool monotone() const {
        const Activation& a = node.activation;
        bool sloped = a.kind == ActivationKind::Prelu || a.kind == ActivationKind::Rprelu;
        return !sloped ||
               std::all_of(a.slope.begin(), a.slope.end(), [](float s) { return s >= 0.0f; });
    }
};

// The place between `from`, where the answer is `answer`, and `to`, where it is not: the last one
// with that answer.
int64_t last_with(const Epilogue& epilogue, size_t c, int64_t from, int64_t to, bool answer) {
    while (from + 1 < to) {
        int64_t middle = from + (to - from) / 2;
        (epilogue.positive(c, middle) == answer ? from : to) = middle;
    }
    return from;
}

// The first and the last sum inside an interval of real numbers.
void find_interval(const Epilogue& epilogue, size_t c, int64_t depth, int32_t& lowest,
                   int32_t& highest) {
    const Activation& a = epilogue.node.activation;
    auto below = [&](int64_t sum) {
        float t = float(sum) * epilogue.node.scale[c];
        return t + epilogue.node.bias[c] < a.lows[c];
    };
    auto above = [&](int64_t sum) {
        float t = float(sum) * epilogue.node.scale[c];
        return t + epilogue.node.bias[c] > a.highs[c];
    };
    int64_t from = -depth - 1, to = depth + 1;
    while (from + 1 < to) {
        int64_t middle = from + (to - from) / 2;
        (below(middle) ? from : to) = middle;
    }
    lowest = int32_t(to);
    from = -depth - 1, to = depth + 1;
    while (from + 1 < to) {
        int64_t middle = from + (to - from) / 2;
        (above(middle) ? to : from) = middle;
    }
    highest = int32_t(from);
}

}  // namespace

void find_thresholds(const Node& node, const std::vector<float>& shift, const float* limit,
                     int64_t depth, std::vector<int32_t>& lowest, std::vector<int32_t>& highest) {
    Epilogue epilogue = {node, shift, limit};
    bool interval = node.activation.kind == ActivationKind::Between;
    auto positive = [](float s) { return s > 0.0f; };
    bool growing = std::all_of(node.scale.begin(), node.scale.end(), positive);
    if (interval ? !shift.empty() || limit || !growing : !epilogue.monotone()) return;
    size_t channels = node.scale.size();
    lowest.assign(channels, kLeast);
    highest.assign(channels, kMost);
    for (size_t c = 0; c < channels; ++c) {
        if (interval) {
            find_interval(epilogue, c, depth, lowest[c], highest[c]);
            continue;
        }
        bool first = epilogue.positive(c, -depth), last = epilogue.positive(c, depth);
        if (!first && !last)
            lowest[c] = kMost, highest[c] = kLeast;
        else if (!first)
            lowest[c] = int32_t(last_with(epilogue, c, -depth, depth, false) + 1);
        else if (!last)
            highest[c] = int32_t(last_with(epilogue, c, -depth, depth, true));
    }
}

}  // namespace surge
