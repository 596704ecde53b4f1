// A command line as text and back, by the rules of a POSIX shell: single quotes, double quotes with
// their escapes, backslashes. A trace keeps the line that made it in a form that can be pasted.
#include "kernels/base/shell_words.h"

#include <algorithm>
#include <string_view>

namespace lockstep {
namespace {

bool is_plain(char c) {
  constexpr std::string_view kOthers = "%+,-./:=@_";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kOthers.find(c) != std::string_view::npos;
}

std::string quoted(const std::string& word) {
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return word;
  std::string text = "'";
  for (const char c : word)
    if (c == '\'')
      text += R"('\'')";
    else
      text += c;
  text += '\'';
  return text;
}

}  // namespace

std::string shell_text(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    text += quoted(word);
  }
  return text;
}

// The reverse of shell_text() for all that it writes: quotes, double quotes and backslashes, no
// variables.
std::vector<std::string> shell_words(const std::string& text) {
  std::vector<std::string> words;
  bool inside = false;  // a word
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_blank = c == ' ' || c == '\t' || c == '\n';
    if (quote == 0 && is_blank) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (c == quote)
      quote = 0;
    else if (quote == 0 && (c == '\'' || c == '"'))
      quote = c;
    else if (c == '\\' && quote != '\'' && i + 1 < text.size())
      words.back() += text[++i];
    else
      words.back() += c;
  }
  return words;
}

}  // namespace lockstep
