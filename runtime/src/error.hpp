// The one exception of the engine. It never leaves the library: api.cpp turns it into text.
#pragma once

#include <stdexcept>
#include <string>

namespace surge {

struct Error : std::runtime_error {
    explicit Error(const std::string& what) : std::runtime_error(what) {}
};

}  // namespace surge
