// Memory that starts on a cache line, so that a 512-bit load never touches two lines.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace surge {

constexpr size_t kAlignment = 64;
constexpr size_t kLargePage = size_t(1) << 21;
constexpr size_t kWorthLargePages = size_t(1) << 20;

inline size_t round_up(size_t bytes, size_t unit = kAlignment) {
    return (bytes + unit - 1) / unit * unit;
}

class AlignedMemory {
   public:
    AlignedMemory() = default;
    // Filled with zeros. Much of it is put on large pages where the system has them: a run that
    // follows another program then looks up a few addresses instead of thousands.
    explicit AlignedMemory(size_t bytes) : bytes_(bytes) {
        bool large = bytes >= kWorthLargePages;
        auto alignment = static_cast<std::align_val_t>(large ? kLargePage : kAlignment);
        size_t room = large ? round_up(bytes + kAlignment, kLargePage)
                            : round_up(bytes) + kAlignment;
        char* memory = static_cast<char*>(::operator new(room, alignment));
        data_ = std::shared_ptr<char>(
            memory, [alignment](char* end) { ::operator delete(end, alignment); });
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        if (large) madvise(memory, room, MADV_HUGEPAGE);
#endif
        std::memset(memory, 0, large ? bytes + kAlignment : room);
    }

    size_t bytes() const { return bytes_; }
    char* data() const { return data_.get(); }
    template <typename T>
    T* as(size_t offset = 0) const {
        return reinterpret_cast<T*>(data_.get() + offset);
    }
    // Copy the content into a part of another piece of memory, and live there from now on.
    void move_into(const AlignedMemory& house, size_t offset) {
        if (!data_) return;
        std::memcpy(house.data() + offset, data(), bytes_);
        data_ = std::shared_ptr<char>(house.data_, house.data() + offset);
    }

   private:
    size_t bytes_ = 0;
    std::shared_ptr<char> data_;
};

}  // namespace surge
