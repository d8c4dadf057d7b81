// A small JSON reader for headers that may be damaged or hostile: it bounds the nesting, rejects
// duplicate keys, and remembers where strings stand in the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace surge {

class Json {
   public:
    enum class Kind { Null, Boolean, Number, String, Array, Object };

    static Json parse(const char* text, size_t size);

    Kind kind() const { return kind_; }
    const std::vector<Json>& items() const;
    const std::vector<std::pair<std::string, Json>>& members() const;
    const std::string& text() const;
    double number() const;
    // A whole number in [low, high]; anything else is an error.
    int64_t integer(int64_t low, int64_t high) const;
    // Member of an object by key; null if it is not there.
    const Json* find(const std::string& key) const;
    // The same, but its absence is an error.
    const Json& at(const std::string& key) const;
    // Where the content of a string begins in the parsed text.
    size_t position() const { return position_; }

   private:
    friend class JsonReader;
    Kind kind_ = Kind::Null;
    double number_ = 0;
    size_t position_ = 0;
    std::string text_;
    std::vector<Json> items_;
    std::vector<std::pair<std::string, Json>> members_;
};

}  // namespace surge
