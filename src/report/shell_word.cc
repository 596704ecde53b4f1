#include "src/report/shell_word.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "kernels/base/utf8.h"

namespace lockstep {

// A quote within single quotes is closed, escaped and opened
// again, the one way that every shell knows.
std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && std::ranges::all_of(text, [](char c) {
    return std::isalnum(byte_of(c)) != 0 ||
           std::string_view("._/-+:,=@%").find(c) != std::string_view::npos;
  });
  if (plain) return text;
  std::string word;
  for (const char c : text)
    if (c == '\'')
      word += "'\\''";
    else
      word += c;
  return fmt::format("'{}'", word);
}

}  // namespace lockstep
