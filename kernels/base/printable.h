// Texts of files and options, made fit to be shown to a person.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The text as one line that any terminal shows as it is: line breaks, control characters, NUL and
// characters that reorder a line are escaped as in C (\n, \x1b, \u202e), and so is each byte that
// is no UTF-8 (\xff). Applied again, it changes nothing.
std::string printable(std::string_view text);

// A value for a sentence: printable, and cut after 80 characters.
std::string shown(std::string_view value);

inline constexpr std::string_view kCut = "...";  // stands where something was left out
// The first or the last bytes of a text, `most` at most; no character is divided.
std::string front_of(std::string_view text, size_t most);
std::string back_of(std::string_view text, size_t most);

}  // namespace lockstep
