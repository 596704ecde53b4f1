// Text broken into lines for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Lines of at most `width` characters, broken at blanks; a word that is longer stands alone and
// whole. Line breaks in `text` are kept. At least one line, which may be empty.
std::vector<std::string> wrap(std::string_view text, size_t width);

// The same as one text: each line but the first begins with `indent` blanks, which `width` includes
// in every line. Without a line break at the end.
std::string indented(std::string_view text, size_t indent, size_t width);

// A shell command of at most `width` characters a line where it has places to break: lines end in
// " \", and all but the first begin with `indent` blanks. It breaks before words that begin with a
// dash, outside quotes.
std::string wrapped_command(std::string_view command, size_t indent, size_t width);

// Columns of the terminal that stdout is, within what people can read; 80 where it is none.
size_t terminal_width();

}  // namespace lockstep
