#include "json.hpp"

#include <charconv>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "error.hpp"

namespace surge {

class JsonReader {
   public:
    JsonReader(const char* text, size_t size) : text_(text), size_(size) {}

    Json document() {
        Json value = read(0);
        skip_space();
        if (at_ != size_) fail("something follows the end");
        return value;
    }

   private:
    static constexpr int kDeepest = 32;

    [[noreturn]] void fail(const char* why) const {
        throw Error("damaged header: " + std::string(why) + " at byte " + std::to_string(at_));
    }

    void skip_space() {
        while (at_ < size_ && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' ||
                               text_[at_] == '\r'))
            ++at_;
    }

    char peek() const {
        if (at_ >= size_) fail("it ends too early");
        return text_[at_];
    }

    void expect(char wanted) {
        if (peek() != wanted) fail("unexpected character");
        ++at_;
    }

    bool take(char wanted) {
        skip_space();
        if (peek() != wanted) return false;
        ++at_;
        return true;
    }

    Json read(int depth) {
        if (depth > kDeepest) fail("nested too deeply");
        skip_space();
        Json value;
        switch (peek()) {
            case '{': read_object(value, depth); break;
            case '[': read_array(value, depth); break;
            case '"': read_string(value); break;
            case 't': read_word("true", value, Json::Kind::Boolean, 1); break;
            case 'f': read_word("false", value, Json::Kind::Boolean, 0); break;
            case 'n': read_word("null", value, Json::Kind::Null, 0); break;
            default: read_number(value);
        }
        return value;
    }

    void read_word(const char* word, Json& value, Json::Kind kind, double number) {
        size_t length = std::strlen(word);
        if (size_ - at_ < length || std::memcmp(text_ + at_, word, length) != 0)
            fail("unknown word");
        at_ += length;
        value.kind_ = kind;
        value.number_ = number;
    }

    void read_number(Json& value) {
        // Not strtod: it wants a comma where the program's locale does.
        size_t length = 0;
        while (at_ + length < size_ && length < 63 &&
               std::strchr("+-0123456789.eE", text_[at_ + length]) && text_[at_ + length])
            ++length;
        const char* begin = text_ + at_;
        double number = 0;
        auto [end, error] = std::from_chars(begin, begin + length, number);
        if (error != std::errc() || end != begin + length || !std::isfinite(number))
            fail("bad number");
        at_ += length;
        value.kind_ = Json::Kind::Number;
        value.number_ = number;
    }

    unsigned read_hex() {
        if (size_ - at_ < 4) fail("bad escape");
        unsigned code = 0;
        for (int i = 0; i < 4; ++i) {
            char c = text_[at_++];
            unsigned digit = c >= '0' && c <= '9'   ? unsigned(c - '0')
                             : c >= 'a' && c <= 'f' ? unsigned(c - 'a' + 10)
                             : c >= 'A' && c <= 'F' ? unsigned(c - 'A' + 10)
                                                    : 16u;
            if (digit == 16) fail("bad escape");
            code = code * 16 + digit;
        }
        return code;
    }

    static void append_utf8(std::string& out, unsigned code) {
        if (code < 0x80) {
            out += char(code);
        } else if (code < 0x800) {
            out += char(0xC0 | code >> 6);
            out += char(0x80 | (code & 63));
        } else if (code < 0x10000) {
            out += char(0xE0 | code >> 12);
            out += char(0x80 | (code >> 6 & 63));
            out += char(0x80 | (code & 63));
        } else {
            out += char(0xF0 | code >> 18);
            out += char(0x80 | (code >> 12 & 63));
            out += char(0x80 | (code >> 6 & 63));
            out += char(0x80 | (code & 63));
        }
    }

    void read_escape(std::string& out) {
        char c = peek();
        ++at_;
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        const char* found = c ? std::strchr(from, c) : nullptr;
        if (found) {
            out += to[found - from];
        } else if (c == 'u') {
            unsigned code = read_hex();
            bool pair = code >= 0xD800 && code < 0xDC00 && size_ - at_ >= 6 &&
                        text_[at_] == '\\' && text_[at_ + 1] == 'u';
            if (pair) {
                at_ += 2;
                unsigned low = read_hex();
                code = 0x10000 + ((code - 0xD800) << 10) + ((low - 0xDC00) & 0x3FF);
            }
            append_utf8(out, code);
        } else {
            fail("bad escape");
        }
    }

    void read_string(Json& value) {
        expect('"');
        value.kind_ = Json::Kind::String;
        value.position_ = at_;
        while (peek() != '"') {
            char c = text_[at_++];
            if (static_cast<unsigned char>(c) < 0x20) fail("control character in a string");
            if (c == '\\')
                read_escape(value.text_);
            else
                value.text_ += c;
        }
        ++at_;
    }

    void read_array(Json& value, int depth) {
        value.kind_ = Json::Kind::Array;
        expect('[');
        if (take(']')) return;
        do value.items_.push_back(read(depth + 1));
        while (take(','));
        skip_space();
        expect(']');
    }

    void read_object(Json& value, int depth) {
        value.kind_ = Json::Kind::Object;
        expect('{');
        if (take('}')) return;
        std::unordered_set<std::string> keys;
        do {
            skip_space();
            Json key;
            read_string(key);
            if (!keys.insert(key.text_).second) fail("a key occurs twice");
            skip_space();
            expect(':');
            value.members_.emplace_back(key.text_, read(depth + 1));
        } while (take(','));
        skip_space();
        expect('}');
    }

    const char* text_;
    size_t size_;
    size_t at_ = 0;
};

Json Json::parse(const char* text, size_t size) { return JsonReader(text, size).document(); }

const std::vector<Json>& Json::items() const {
    if (kind_ != Kind::Array) throw Error("damaged header: a list is expected");
    return items_;
}

const std::vector<std::pair<std::string, Json>>& Json::members() const {
    if (kind_ != Kind::Object) throw Error("damaged header: an object is expected");
    return members_;
}

const std::string& Json::text() const {
    if (kind_ != Kind::String) throw Error("damaged header: a text is expected");
    return text_;
}

double Json::number() const {
    if (kind_ != Kind::Number) throw Error("damaged header: a number is expected");
    return number_;
}

int64_t Json::integer(int64_t low, int64_t high) const {
    double value = number();
    if (value != std::floor(value) || value < double(low) || value > double(high))
        throw Error("damaged header: " + std::to_string(value) + " is not a whole number from " +
                    std::to_string(low) + " to " + std::to_string(high));
    return int64_t(value);
}

const Json* Json::find(const std::string& key) const {
    for (const auto& member : members())
        if (member.first == key) return &member.second;
    return nullptr;
}

const Json& Json::at(const std::string& key) const {
    const Json* found = find(key);
    if (!found) throw Error("damaged header: \"" + key + "\" is missing");
    return *found;
}

}  // namespace surge
