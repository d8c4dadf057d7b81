// Memory that starts on a cache line, so that a 512-bit load never touches two lines.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

namespace surge {

constexpr size_t kAlignment = 64;

inline size_t round_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class AlignedMemory {
   public:
    AlignedMemory() = default;
    // Filled with zeros.
    explicit AlignedMemory(size_t bytes)
        : data_(static_cast<char*>(::operator new(round_up(bytes) + kAlignment,
                                                  std::align_val_t(kAlignment)))) {
        std::memset(data_.get(), 0, round_up(bytes) + kAlignment);
    }

    char* data() const { return data_.get(); }
    template <typename T>
    T* as(size_t offset = 0) const {
        return reinterpret_cast<T*>(data_.get() + offset);
    }

   private:
    struct Release {
        void operator()(char* memory) const {
            ::operator delete(memory, std::align_val_t(kAlignment));
        }
    };
    std::unique_ptr<char, Release> data_;
};

}  // namespace surge
