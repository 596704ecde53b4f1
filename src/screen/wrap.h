// Text in columns of a terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The text without what would move a terminal's cursor or change its state: control characters
// become \n, \t or \x1b and the like, bytes that are no UTF-8 become \xff. `keep_lines` leaves the
// ends of lines as they are.
std::string screen_text(std::string_view text, bool keep_lines = false);

// Columns that a screen text takes: two of a wide character (CJK), none of a combining mark.
size_t columns_of(std::string_view text);

// A screen text in lines of at most `width` columns (at least 1), broken at blanks, where there are
// several if that leaves no line half empty, and inside a word only where that is longer than a
// line. Ends of lines in the text stay.
std::vector<std::string> wrapped(std::string_view text, size_t width);

// The same as one text: each line but the first begins with `indent` blanks, which `width` includes
// in every line. Without a line break at the end.
std::string indented(std::string_view text, size_t indent, size_t width);

// A shell command of at most `width` characters a line where it has places to break: lines end in
// " \", and all but the first begin with `indent` blanks. It breaks before words that begin with a
// dash, outside quotes.
std::string wrapped_command(std::string_view command, size_t indent, size_t width);

// The text in double quotes, fit for a screen, and shortened in its middle to `most` columns.
std::string in_quotes(std::string_view text, size_t most = 24);

}  // namespace lockstep
