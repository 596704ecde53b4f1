#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// The number of a byte of a text, whose char may have a sign.
constexpr uint8_t byte_of(char c) { return static_cast<uint8_t>(c); }

struct Utf8Front {
  // The front of some bytes: a character of `length` bytes; `length` bytes that begin
  // one and were cut off by the end; or `length` bytes that can never become one (the longest such
  // prefix, as the Unicode standard recommends for U+FFFD). `bytes` is not empty.
  enum class Kind { whole, cut, broken };

  Kind kind;
  size_t length;
};
Utf8Front utf8_front(std::string_view bytes);

// Appends to `text` the whole characters of `bytes`, broken ones as U+FFFD, and removes them from
// `bytes`; a cut one at the end stays there.
void take_characters(std::string& bytes, std::string& text);

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace lockstep
