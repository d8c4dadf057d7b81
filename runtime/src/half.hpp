// Numbers of 16 bits (IEEE half precision).
#pragma once

#include <cmath>
#include <cstdint>

namespace surge {

static inline float from_half(uint16_t half) {
    int exponent = half >> 10 & 31;
    int mantissa = half & 1023;
    float magnitude = exponent == 0    ? std::ldexp(float(mantissa), -24)
                      : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                       : std::ldexp(float(mantissa + 1024), exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

}  // namespace surge
