// Text on a terminal: characters have a width of 0, 1 or 2 columns (Unicode's annex 11), lines
// break between parts that stand apart, else between words, and characters that would move the
// cursor or turn the order of what follows are shown as escapes. Bytes that are no UTF-8 are
// escapes too.
#include "src/screen/wrap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "kernels/base/utf8.h"

namespace lockstep {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
  bool valid = false;
};

// The character that the text begins with (RFC 3629: no overlong forms, no surrogates).
Character first_of(std::string_view text) {
  const auto byte = [&](size_t i) { return byte_of(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[bytes] || surrogate || code > 0x10ffff) return {};
  return {code, bytes, true};
}

struct Range {
  uint32_t first, last;
};
bool is_in(const auto& ranges, uint32_t code) {
  return std::ranges::any_of(ranges,
                             [code](const Range& r) { return r.first <= code && code <= r.last; });
}

// The blocks of East Asian Width "W" and "F" (Unicode's annex 11) that text is made of.
constexpr Range kWide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},
                           {0xa960, 0xa97f},   {0xac00, 0xd7a3},   {0xf900, 0xfaff},
                           {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
                           {0x1f300, 0x1f64f}, {0x1f680, 0x1f9ff}, {0x20000, 0x3fffd}};
constexpr Range kWithoutWidth[] = {
    {0x0300, 0x036f}, {0x200b, 0x200d}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}};
// Characters that turn the order of what follows around, begin a line or move the cursor.
constexpr Range kControls[] = {{0x00, 0x1f},     {0x7f, 0x9f},     {0x200e, 0x200f},
                               {0x2028, 0x202e}, {0x2066, 0x2069}, {0xfeff, 0xfeff}};

std::string escaped(uint32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\t') return "\\t";
  if (code == '\r') return "\\r";
  return code < 0x100 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
}

size_t width_of(uint32_t code) {
  if (is_in(kWithoutWidth, code)) return 0;
  return is_in(kWide, code) ? 2 : 1;
}

// Bytes of the longest beginning of the text that `width` columns hold, at least one character.
size_t bytes_within(std::string_view text, size_t width) {
  size_t at = 0, columns = 0;
  while (at < text.size()) {
    const Character next = first_of(text.substr(at));
    columns += width_of(next.code);
    // One character at least, or a line of one column would never end before a wide one.
    if (columns > width && at > 0) break;
    at += next.bytes;
  }
  return at;
}

// Where the line that `text` begins with should end, of which `fits` bytes fit: between two parts,
// which have two blanks and more between them, unless that leaves the line half empty; else between
// two words, but never behind a quotation mark that opens.
size_t end_of_line(std::string_view text, size_t fits) {
  const size_t parts = text.substr(0, fits + 1).rfind("  ");
  if (parts != std::string_view::npos && parts > 2 * fits / 5) return parts;
  // A blank that follows the last column ends the line as well.
  for (size_t end = fits + 1; end-- > 0;) {
    if (end >= text.size() || text[end] != ' ') continue;
    const bool quote = end > 0 && text[end - 1] == '"' && (end == 1 || text[end - 2] == ' ');
    if (!quote && text.find_first_not_of(' ') < end) return end;
  }
  return fits;
}

void wrap_line(std::string_view text, size_t width, std::vector<std::string>& lines) {
  while (columns_of(text) > width) {
    const size_t end = end_of_line(text, bytes_within(text, width));
    const std::string_view line = text.substr(0, end);
    lines.emplace_back(line.substr(0, line.find_last_not_of(' ') + 1));
    text.remove_prefix(end);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return;
  }
  lines.emplace_back(text);
}

// The options of a command with their values: pieces that a line may begin with.
std::vector<std::string> pieces_of(std::string_view command) {
  std::vector<std::string> pieces(1);
  char quote = 0;
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    // A blank before a dash within quotes is part of a word.
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

std::string screen_text(std::string_view text, bool keep_lines) {
  std::string out;
  while (!text.empty()) {
    const Character next = first_of(text);
    const bool kept = keep_lines && next.valid && next.code == '\n';
    if (!next.valid)
      out += fmt::format("\\x{:02x}", byte_of(text[0]));
    else if (is_in(kControls, next.code) && !kept)
      out += escaped(next.code);
    else
      out += text.substr(0, next.bytes);
    text.remove_prefix(next.bytes);
  }
  return out;
}

size_t columns_of(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) {
    const Character next = first_of(text);
    columns += width_of(next.code);
    text.remove_prefix(next.bytes);
  }
  return columns;
}

std::vector<std::string> wrapped(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  while (true) {
    const size_t end = text.find('\n');
    wrap_line(text.substr(0, end), std::max<size_t>(width, 1), lines);
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

std::string indented(std::string_view text, size_t indent, size_t width) {
  const std::string margin = fmt::format("\n{}", std::string(indent, ' '));
  return fmt::format("{}", fmt::join(wrapped(text, width - std::min(indent, width - 1)), margin));
}

std::string wrapped_command(std::string_view command, size_t indent, size_t width) {
  std::string out;
  size_t column = 0;
  for (const std::string& piece : pieces_of(command)) {
    constexpr size_t kContinued = 2;  // columns of " \"
    if (column > 0 && column + 1 + piece.size() + kContinued > width) {
      out += " \\\n";
      out.append(indent, ' ');
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

std::string in_quotes(std::string_view text, size_t most) {
  std::string shown = screen_text(text);
  if (columns_of(shown) > most) {
    const size_t head = bytes_within(shown, most / 2);
    size_t tail = head;
    // Whole characters are left out, until the rest fits behind the two dots.
    while (columns_of(std::string_view(shown).substr(tail)) > most - most / 2 - 2)
      tail += first_of(std::string_view(shown).substr(tail)).bytes;
    shown = fmt::format("{}..{}", shown.substr(0, head), shown.substr(tail));
  }
  return fmt::format("\"{}\"", shown);
}

}  // namespace lockstep
