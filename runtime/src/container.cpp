#include "container.hpp"

#include <cstring>

#include "error.hpp"
#include "half.hpp"
#include "json.hpp"
#include "sha256.hpp"

namespace surge {
namespace {

constexpr size_t kLongestHeader = size_t(1) << 26;
constexpr int64_t kMostElements = int64_t(1) << 40;
const char kVersion[] = "1";

size_t width(Dtype dtype) {
    return dtype == Dtype::F32 ? 4 : dtype == Dtype::F16 ? 2 : 1;
}

Dtype dtype_of(const std::string& name) {
    if (name == "F32") return Dtype::F32;
    if (name == "F16") return Dtype::F16;
    if (name == "I8") return Dtype::I8;
    if (name == "U8") return Dtype::U8;
    throw Error("damaged file: a tensor has the unknown type \"" + name + "\"");
}

// The digest of the whole file, with zeros where the digest itself stands.
std::string digest(const uint8_t* data, size_t size, size_t place) {
    Sha256 hash;
    hash.add(data, place);
    hash.add(std::string(64, '0').data(), 64);
    hash.add(data + place + 64, size - place - 64);
    return hash.finish();
}

}  // namespace

Container::Container(const uint8_t* data, size_t size) {
    if (size < 8) throw Error("not a packed file: only " + std::to_string(size) + " bytes");
    uint64_t length = 0;
    for (int i = 0; i < 8; ++i) length |= uint64_t(data[i]) << (8 * i);
    if (length > size - 8 || length > kLongestHeader)
        throw Error("not a packed file, or cut off: its header should have " +
                    std::to_string(length) + " bytes, the file has " + std::to_string(size));
    Json header = Json::parse(reinterpret_cast<const char*>(data) + 8, size_t(length));
    const Json* facts = header.find("__metadata__");
    if (!facts || !facts->find("format") || facts->at("format").text() != "surge")
        throw Error("this is a safetensors file, but not one that surge.pack wrote");
    for (const auto& fact : facts->members()) metadata_[fact.first] = fact.second.text();
    if (required("version") != kVersion)
        throw Error("the file has format version " + required("version") +
                    ", this engine reads version " + kVersion);
    const Json& checksum = facts->at("checksum");
    size_t place = 8 + checksum.position();
    if (checksum.text().size() != 64 || place + 64 > 8 + length ||
        digest(data, size, place) != checksum.text())
        throw Error("damaged file: its checksum does not match its content");
    const uint8_t* base = data + 8 + length;
    size_t available = size - 8 - size_t(length);
    for (const auto& member : header.members())
        if (member.first != "__metadata__")
            read_tensor(member.first, member.second, base, available);
    if (covered_ != available) throw Error("damaged file: its tensors do not fill it exactly");
}

void Container::read_tensor(const std::string& name, const Json& entry, const uint8_t* base,
                            size_t available) {
    Tensor tensor;
    tensor.dtype = dtype_of(entry.at("dtype").text());
    tensor.elements = 1;
    for (const Json& size : entry.at("shape").items()) {
        int64_t n = size.integer(0, kMostElements);
        if (n > 0 && tensor.elements > kMostElements / n)
            throw Error("damaged file: tensor \"" + name + "\" is too large");
        tensor.elements *= n;
    }
    const auto& offsets = entry.at("data_offsets").items();
    if (offsets.size() != 2) throw Error("damaged file: tensor \"" + name + "\" has no place");
    int64_t end = offsets[1].integer(0, int64_t(available));
    int64_t begin = offsets[0].integer(0, end);
    tensor.data = base + begin;
    tensor.bytes = size_t(end - begin);
    if (tensor.bytes != size_t(tensor.elements) * width(tensor.dtype))
        throw Error("damaged file: tensor \"" + name + "\" has another size than its shape");
    covered_ += tensor.bytes;
    tensors_[name] = tensor;
}

const std::string& Container::required(const std::string& key) const {
    auto found = metadata_.find(key);
    if (found == metadata_.end()) throw Error("damaged file: \"" + key + "\" is missing");
    return found->second;
}

const Tensor& Container::tensor(const std::string& name) const {
    auto found = tensors_.find(name);
    if (found == tensors_.end()) throw Error("damaged file: tensor \"" + name + "\" is missing");
    return found->second;
}

std::vector<float> Container::floats(const std::string& name) const {
    const Tensor& source = tensor(name);
    std::vector<float> values(size_t(source.elements));
    for (size_t i = 0; i < values.size(); ++i) {
        if (source.dtype == Dtype::F32) {
            std::memcpy(&values[i], source.data + 4 * i, 4);
        } else if (source.dtype == Dtype::F16) {
            values[i] = from_half(uint16_t(source.data[2 * i] | source.data[2 * i + 1] << 8));
        } else if (source.dtype == Dtype::I8) {
            values[i] = float(int8_t(source.data[i]));
        } else {
            throw Error("damaged file: tensor \"" + name + "\" holds bits, not numbers");
        }
    }
    return values;
}

}  // namespace surge
