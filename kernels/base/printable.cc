// Text from files and options may hold anything, and ends up in sentences on terminals: control
// characters and bytes that are no UTF-8 are written as escapes.
#include "kernels/base/printable.h"

#include <fmt/core.h>

#include <cstdint>

#include "kernels/base/utf8.h"

namespace lockstep {
namespace {

constexpr size_t kShownCharacters = 80;

bool continues(char byte) { return (byte_of(byte) & 0xC0) == 0x80; }

// The code point of a whole character. The text has been found to be UTF-8: lead bytes are taken at
// their word.
uint32_t point_of(std::string_view character) {
  const uint8_t first = byte_of(character[0]);
  if (character.size() == 1) return first;
  uint32_t point = first & (0x7Fu >> character.size());
  for (const char byte : character.substr(1)) point = point << 6 | (byte_of(byte) & 0x3F);
  return point;
}

// Control characters, and those that break a line or change the order in which it is shown. C0, DEL
// and C1; zero-width characters and marks of direction; separators of lines, embeddings and
// overrides; invisible operators and isolates; the byte order mark; and the code points that are no
// characters, the last two of each plane and 32 more.
bool is_printable(uint32_t point) {
  const auto within = [point](uint32_t first, uint32_t last) {
    return first <= point && point <= last;
  };
  return !within(0, 0x1F) && !within(0x7F, 0x9F) && !within(0x200B, 0x200F) &&
         !within(0x2028, 0x202E) && !within(0x2060, 0x206F) && point != 0xFEFF &&
         !within(0xFDD0, 0xFDEF) && (point & 0xFFFE) != 0xFFFE;
}

std::string escaped(uint32_t point) {
  if (point == '\n') return "\\n";
  if (point == '\r') return "\\r";
  if (point == '\t') return "\\t";
  return fmt::format(fmt::runtime(point < 0x80 ? "\\x{:02x}" : "\\u{:04x}"), point);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const Utf8Front front = utf8_front(text);
    const std::string_view bytes = text.substr(0, front.length);
    text.remove_prefix(front.length);
    if (front.kind != Utf8Front::Kind::whole)
      for (const char byte : bytes) line += fmt::format("\\x{:02x}", byte_of(byte));
    else if (const uint32_t point = point_of(bytes); is_printable(point))
      line += bytes;
    else
      line += escaped(point);
  }
  return line;
}

// A value within a sentence: a line of so many characters at most.
std::string shown(std::string_view value) {
  // Four bytes a character are the most that UTF-8 has: no more need to be looked at.
  const std::string line = printable(value.substr(0, 4 * (kShownCharacters + 1)));
  size_t characters = 0;
  for (size_t at = 0; at < line.size(); ++at) {
    if (continues(line[at])) continue;
    if (characters++ == kShownCharacters) return line.substr(0, at) + std::string(kCut);
  }
  return line;
}

// Cuts fall between characters, never within one.
std::string front_of(std::string_view text, size_t most) {
  size_t end = most < text.size() ? most : text.size();
  while (end > 0 && end < text.size() && continues(text[end])) --end;
  return std::string(text.substr(0, end));
}

std::string back_of(std::string_view text, size_t most) {
  size_t begin = text.size() - (most < text.size() ? most : text.size());
  while (begin < text.size() && continues(text[begin])) ++begin;
  return std::string(text.substr(begin));
}

}  // namespace lockstep
