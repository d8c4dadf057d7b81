// The packed file as a container: safetensors, with the metadata a packed network needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace surge {

enum class Dtype { F32, F16, I8, U8 };

struct Tensor {
    Dtype dtype = Dtype::U8;
    int64_t elements = 0;
    const uint8_t* data = nullptr;  // inside the file, not aligned
    size_t bytes = 0;
};

class Container {
   public:
    // Checks everything that can be checked without knowing the graph. `data` must outlive this.
    Container(const uint8_t* data, size_t size);

    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    const std::string& required(const std::string& key) const;
    const Tensor& tensor(const std::string& name) const;
    // Values of an fp32, fp16 or int8 tensor as floats.
    std::vector<float> floats(const std::string& name) const;

   private:
    void read_tensor(const std::string& name, const class Json& entry, const uint8_t* base,
                     size_t available);
    std::map<std::string, std::string> metadata_;
    std::map<std::string, Tensor> tensors_;
    size_t covered_ = 0;
};

}  // namespace surge
