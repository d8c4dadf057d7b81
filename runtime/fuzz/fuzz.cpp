// Feed damaged and hostile files to the engine, for a while.
//
//     fuzz SECONDS SEED FILE...
//
// Every round takes one of the files, changes it in a few places, mostly seals it again with a
// right checksum, so that the change gets past the first door, and loads it; what loads is run in
// a random tier. Built with AddressSanitizer and UBSan, anything but an error message is a finding.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "sha256.hpp"
#include "surge_runtime.h"

namespace {

using Bytes = std::string;

const char* const kNumbers[] = {"0",     "-1",         "1",      "2",     "3",     "7",
                                "16",    "31",         "33",     "64",    "65536", "268435456",
                                "2147483648", "1099511627776", "9223372036854775808", "1e300",
                                "0.5",   "-0.0",       "1e-45",  "nan",   "null",  "[]"};
constexpr size_t kLargestInput = size_t(1) << 20;
constexpr size_t kLargestWorkspace = size_t(1) << 24;

class Mutator {
   public:
    Mutator(uint64_t seed, std::vector<Bytes> files) : random_(seed), files_(std::move(files)) {}

    size_t below(size_t limit) { return size_t(random_() % (limit ? limit : 1)); }

    Bytes next() {
        Bytes file = files_[below(files_.size())];
        size_t header = header_size(file);
        Bytes text = file.substr(8, header), data = file.substr(8 + header);
        for (size_t i = 0, count = 1 + below(4); i < count; ++i) change(text, data);
        uint64_t length = text.size();
        if (below(50) == 0) length ^= uint64_t(1) << below(64);
        Bytes result;
        for (int i = 0; i < 8; ++i) result += char(length >> (8 * i));
        result += text + data;
        if (below(50) == 0) result.resize(below(result.size()));
        if (below(20) != 0) seal(result);
        return result;
    }

   private:
    static size_t header_size(const Bytes& file) {
        uint64_t length = 0;
        for (int i = 0; i < 8; ++i) length |= uint64_t(uint8_t(file[size_t(i)])) << (8 * i);
        return size_t(length);
    }

    void change(Bytes& text, Bytes& data) {
        switch (below(8)) {
            case 0: flip(data); break;
            case 1: flip(text); break;
            case 2: cut(text); break;
            case 3: copy(text); break;
            case 4: swap_words(text); break;
            default: replace_number(text);
        }
    }

    void flip(Bytes& bytes) {
        if (!bytes.empty()) bytes[below(bytes.size())] ^= char(1 << below(8));
    }

    void cut(Bytes& text) {
        size_t at = below(text.size());
        text.erase(at, 1 + below(24));
    }

    void copy(Bytes& text) {
        size_t from = below(text.size());
        text.insert(below(text.size()), text.substr(from, 1 + below(64)));
    }

    // The first word behind a place: letters and what names are made of.
    static std::pair<size_t, size_t> word(const Bytes& text, size_t at) {
        auto inside = [&](size_t i) { return std::isalnum(uint8_t(text[i])) || text[i] == '_'; };
        while (at < text.size() && !std::isalpha(uint8_t(text[at]))) ++at;
        size_t end = at;
        while (end < text.size() && inside(end)) ++end;
        return {at, end - at};
    }

    void swap_words(Bytes& text) {
        auto one = word(text, below(text.size())), other = word(text, below(text.size()));
        Bytes name = text.substr(other.first, other.second);
        if (one.second) text.replace(one.first, one.second, name);
    }

    void replace_number(Bytes& text) {
        size_t at = below(text.size());
        while (at < text.size() && !std::isdigit(uint8_t(text[at]))) ++at;
        size_t end = at;
        while (end < text.size() && std::isdigit(uint8_t(text[end]))) ++end;
        if (at == text.size()) return;
        size_t choices = sizeof kNumbers / sizeof *kNumbers;
        Bytes number = below(2) ? kNumbers[below(choices)] : std::to_string(below(100));
        text.replace(at, end - at, number);
    }

    static void seal(Bytes& file) {
        const Bytes key = "\"checksum\":\"";
        size_t at = file.find(key);
        if (at == Bytes::npos || at + key.size() + 64 > file.size()) return;
        at += key.size();
        file.replace(at, 64, Bytes(64, '0'));
        surge::Sha256 hash;
        hash.add(file.data(), file.size());
        file.replace(at, 64, hash.finish());
    }

    std::mt19937_64 random_;
    std::vector<Bytes> files_;
};

size_t product(const int64_t* dims, int rank) {
    size_t total = 1;
    for (int i = 0; i < rank; ++i) total *= size_t(dims[i]);
    return total;
}

// Returns whether the file was loaded and run.
bool try_file(const Bytes& file, Mutator& random) {
    char error[256] = "";
    surge_model* model = surge_load_memory(file.data(), file.size(), error, sizeof error);
    if (!model) {
        if (!*error) std::abort();  // an error must say what is wrong
        return false;
    }
    int64_t in[8], out[8];
    size_t inputs = product(in, surge_input_shape(model, in, 8));
    size_t outputs = product(out, surge_output_shape(model, out, 8));
    bool small = inputs < kLargestInput && outputs < kLargestInput &&
                 surge_workspace_bytes(model) < kLargestWorkspace;
    if (small) {
        std::vector<float> input(inputs), output(outputs);
        bool whole = random.below(2);
        for (float& value : input)
            value = whole ? float(random.below(3)) : float(int(random.below(200)) - 100) / 50.0f;
        const char* const tiers[] = {"auto", "scalar", "avx2"};
        surge_set_tier(model, tiers[random.below(3)], error, sizeof error);
        // A run may only fail for want of a row with such a number, and must say so.
        if (surge_run(model, input.data(), 1, output.data(), error, sizeof error) &&
            !std::strstr(error, "has no row"))
            std::abort();
    }
    surge_free(model);
    return small;
}

}  // namespace

int main(int count, char** words) {
    if (count < 4) {
        std::fprintf(stderr, "usage: fuzz SECONDS SEED FILE...\n");
        return 2;
    }
    std::vector<Bytes> files;
    for (int i = 3; i < count; ++i) {
        std::ifstream file(words[i], std::ios::binary);
        files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        if (files.back().size() < 8) return 2;
    }
    Mutator mutator(std::strtoull(words[2], nullptr, 10), files);
    for (const Bytes& file : files)
        if (!try_file(file, mutator)) return 2;  // the originals must run
    using Clock = std::chrono::steady_clock;
    auto end = Clock::now() + std::chrono::duration<double>(std::atof(words[1]));
    long tried = 0, ran = 0;
    while (Clock::now() < end) {
        ran += try_file(mutator.next(), mutator);
        ++tried;
    }
    std::printf("%ld files, %ld of them ran\n", tried, ran);
    return 0;
}
