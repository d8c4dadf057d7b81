// SHA-256 (FIPS 180-4): the checksum of a packed file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace surge {

class Sha256 {
   public:
    void add(const void* data, size_t size);
    // The digest in hexadecimal; call it once, at the end.
    std::string finish();

   private:
    void block(const uint8_t* bytes);
    uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t pending_[64] = {};
    size_t waiting_ = 0;
    uint64_t total_ = 0;
};

}  // namespace surge
