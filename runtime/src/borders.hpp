// What stands around an image in memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace surge {

// Zeros around an image: the memory held something else before.
inline void clear_border(char* data, int64_t rows, int64_t columns, int64_t pixel, const int64_t* padding) {
    int64_t row = columns * pixel, side = padding[1] * pixel;
    std::memset(data, 0, size_t(padding[0] * row));
    std::memset(data + (rows - padding[0]) * row, 0, size_t(padding[0] * row));
    if (side == 0) return;
    for (int64_t y = padding[0]; y < rows - padding[0]; ++y) {
        std::memset(data + y * row, 0, size_t(side));
        std::memset(data + (y + 1) * row - side, 0, size_t(side));
    }
}

// The same with a pixel of bytes instead of zeros.
inline void fill_border(uint8_t* data, int64_t rows, int64_t columns, const std::vector<uint8_t>& fill,
                 const int64_t* padding) {
    int64_t width = int64_t(fill.size() + 3) / 4 * 4;
    auto put = [&](int64_t y, int64_t x, int64_t count) {
        uint8_t* pixel = data + (y * columns + x) * width;
        for (int64_t i = 0; i < count; ++i, pixel += width) {
            std::memset(pixel, 0, size_t(width));
            std::memcpy(pixel, fill.data(), fill.size());
        }
    };
    for (int64_t y = 0; y < rows; ++y) {
        if (y < padding[0] || y >= rows - padding[0]) {
            put(y, 0, columns);
        } else {
            put(y, 0, padding[1]);
            put(y, columns - padding[1], padding[1]);
        }
    }
}

}  // namespace surge
