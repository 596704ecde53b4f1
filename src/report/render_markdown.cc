// The document for a pull request or an issue: tables as pipes, text escaped so that names like
// `a_b` stay as they are.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "kernels/base/utf8.h"
#include "src/report/render.h"

namespace lockstep {
namespace {

// Characters that mean something in the Markdown of GitHub: a backslash before them takes that
// away. An underscore within a word means nothing.
constexpr std::string_view kMeaningful = "\\`*<>|[]~#&$@!";

bool in_word(const std::string& text, size_t at) {
  const auto letter = [&](size_t i) {
    return i < text.size() && std::isalnum(byte_of(text[i])) != 0;
  };
  return at > 0 && letter(at - 1) && letter(at + 1);
}

// Where the text begins as an item of a list would: "- ", "12. "; or else 0.
size_t end_of_item(const std::string& text) {
  if (text.starts_with("- ") || text.starts_with("+ ")) return 1;
  const size_t digits = text.find_first_not_of("0123456789");
  const bool item = digits != std::string::npos && digits > 0 &&
                    (text.compare(digits, 2, ". ") == 0 || text.compare(digits, 2, ") ") == 0);
  return item ? digits + 1 : 0;
}

// One line of text that is shown as it is.
std::string escaped(const std::string& text) {
  std::string out;
  // An escape before the dot or the dash is enough: what follows is no item's.
  if (const size_t end = end_of_item(text); end > 0) {
    out = fmt::format("{}\\{}", text.substr(0, end - 1), text[end - 1]);
    return out + escaped(text.substr(end));
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    // A line end would end a row of a table.
    if (byte_of(c) < 0x20 || c == 0x7f) {
      out += ' ';
      continue;
    }
    const bool meant = kMeaningful.find(c) != std::string_view::npos;
    if (meant || (c == '_' && !in_word(text, i))) out += '\\';
    out += c;
  }
  return out;
}

std::string titled(const std::string& title) {
  return title.empty() ? "" : fmt::format("**{}**\n\n", escaped(title));
}

std::string markdown_cell(const Cell& cell, const char* number_format) {
  if (const auto* text = std::get_if<std::string>(&cell)) return escaped(*text);
  if (const auto* whole = std::get_if<int64_t>(&cell)) return std::to_string(*whole);
  return fmt::format(fmt::runtime(number_format), std::get<double>(cell));
}

std::string markdown_of(const Table& table) {
  if (table.columns.empty()) return "";
  std::string out = titled(table.title);
  std::string head = "|", rule = "|";
  for (size_t i = 0; i < table.columns.size(); ++i) {
    head += fmt::format(" {} |", escaped(table.columns[i].name));
    rule += table.is_right_aligned(i) ? " ---: |" : " --- |";
  }
  out += head + "\n" + rule + "\n";
  for (const auto& row : table.rows) {
    out += "|";
    for (const Cell& cell : row)
      out += fmt::format(" {} |", markdown_cell(cell, table.number_format));
    out += "\n";
  }
  return out + "\n";
}

std::string markdown_of(const Heading& heading) {
  return heading.text.empty() ? "" : fmt::format("#### {}\n\n", escaped(heading.text));
}

std::string markdown_of(const Paragraph& paragraph) { return escaped(paragraph.text) + "\n\n"; }

std::string markdown_of(const List& list) {
  std::string out = titled(list.title);
  for (const std::string& item : list.items) out += fmt::format("- {}\n", escaped(item));
  return out + "\n";
}

// The verdict stands above everything.
std::string markdown_of(const Conclusion&) { return ""; }

// A fence is longer than any within.
std::string fence_around(const std::string& text) {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) fence += '`';
  return fence;
}

// Whatever is drawn with characters of one width is left as it is drawn.
template <typename Other>
std::string markdown_of(const Other& block) {
  const std::string drawn = render_text(Document{.blocks = {block}});
  const std::string fence = fence_around(drawn);
  return fmt::format("{0}text\n{1}{0}\n\n", fence, drawn);
}

}  // namespace

std::string render_markdown(const Document& document) {
  std::string verdict, rest;
  for (const Block& block : document.blocks) {
    if (const auto* conclusion = std::get_if<Conclusion>(&block))
      verdict += fmt::format("### lockstep: {}\n\n{}\n\n", escaped(conclusion->verdict),
                             escaped(conclusion->story));
    rest += std::visit([](const auto& part) { return markdown_of(part); }, block);
  }
  return verdict + rest;
}

}  // namespace lockstep
