#include "src/help/wrap.h"

#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep {
namespace {

constexpr size_t kWidth = 80, kNarrowest = 40, kWidest = 120;

std::string blanks(size_t count) { return std::string(count, ' '); }

// The parts between separators, empty ones too.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// The options of a command with their values: pieces that a line may begin with.
std::vector<std::string> pieces_of(std::string_view command) {
  std::vector<std::string> pieces(1);
  char quote = 0;
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (quote == 0 && c == ' ' && i + 1 < command.size() && command[i + 1] == '-') {
      pieces.emplace_back();
      continue;
    }
    if (quote == c)
      quote = 0;
    else if (quote == 0 && (c == '\'' || c == '"'))
      quote = c;
    pieces.back() += c;
  }
  return pieces;
}

}  // namespace

std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  for (const std::string_view paragraph : split(text, '\n')) {
    lines.emplace_back();
    for (const std::string_view word : split(paragraph, ' ')) {
      if (word.empty()) continue;
      if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width)
        lines.emplace_back();
      if (!lines.back().empty()) lines.back() += ' ';
      lines.back() += word;
    }
  }
  return lines;
}

std::string indented(std::string_view text, size_t indent, size_t width) {
  const std::vector<std::string> lines = wrap(text, width - std::min(indent, width - 1));
  return fmt::format("{}", fmt::join(lines, fmt::format("\n{}", blanks(indent))));
}

std::string wrapped_command(std::string_view command, size_t indent, size_t width) {
  std::string out;
  size_t column = 0;
  for (const std::string& piece : pieces_of(command)) {
    constexpr size_t kContinued = 2;  // columns of " \"
    if (column > 0 && column + 1 + piece.size() + kContinued > width) {
      out += " \\\n";
      out += blanks(indent);
      column = indent;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += piece;
    column += piece.size();
  }
  return out;
}

size_t terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kWidth;
  return std::clamp(static_cast<size_t>(size.ws_col), kNarrowest, kWidest);
}

}  // namespace lockstep
