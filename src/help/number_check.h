#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace lockstep {

// Says what is wrong with the text of an option's value: "a whole number of at least 1 is wanted,
// found "0"". Empty: nothing is. A text that is long is cut.
using ValueCheck = std::function<std::string(const std::string& text)>;

ValueCheck whole_number(int64_t least, int64_t most);
// Any number over 0.
ValueCheck positive_number(double most);

}  // namespace lockstep
