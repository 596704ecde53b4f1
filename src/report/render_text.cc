#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/report/render.h"

namespace lockstep {
namespace {

constexpr int kBar = 50;  // columns of the longest bar of a chart

std::string shown(const Cell& cell, const char* number_format) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* whole = std::get_if<int64_t>(&cell)) return std::to_string(*whole);
  return fmt::format(fmt::runtime(number_format), std::get<double>(cell));
}

bool is_right(const Table& table, size_t column) {
  if (table.columns[column].align != Align::by_content)
    return table.columns[column].align == Align::right;
  return std::ranges::any_of(table.rows, [column](const auto& row) {
    return !std::holds_alternative<std::string>(row[column]);
  });
}

std::string titled(const std::string& title) { return title.empty() ? "" : title + "\n"; }

std::string text_of(const Table& table) {
  std::vector<std::vector<std::string>> lines(1);
  std::vector<size_t> widths;
  std::vector<bool> right;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    lines[0].push_back(table.columns[i].name);
    widths.push_back(static_cast<size_t>(table.columns[i].least_width));
    right.push_back(is_right(table, i));
  }
  for (const auto& row : table.rows) {
    auto& line = lines.emplace_back();
    for (const Cell& cell : row) line.push_back(shown(cell, table.number_format));
  }
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  const std::string gap(static_cast<size_t>(table.gap), ' ');
  std::string out = titled(table.title);
  for (const auto& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i)
      text += fmt::format(fmt::runtime(right[i] ? "{:>{}}" : "{:<{}}"), line[i], widths[i]) + gap;
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string text_of(const Heading& heading) { return fmt::format("\n{}", titled(heading.text)); }

std::string text_of(const Paragraph& paragraph) { return paragraph.text + "\n"; }

std::string text_of(const List& list) {
  std::string out = titled(list.title);
  for (const std::string& item : list.items) out += fmt::format("  {}\n", item);
  return out;
}

std::string text_of(const KeyValues& pairs) {
  std::string out;
  for (const auto& [key, value] : pairs.entries) out += fmt::format("{:<16}{}\n", key, value);
  return out;
}

std::string text_of(const Bars& bars) {
  int64_t most = 1;
  for (const auto& [name, count] : bars.counts) most = std::max(most, count);
  std::string out;
  for (const auto& [name, count] : bars.counts) {
    const double share = static_cast<double>(count) / static_cast<double>(most);
    const std::string bar(static_cast<size_t>(std::ceil(kBar * share)), '#');
    out += fmt::format("  {:<6}{:>12}{}{}\n", name, count, bar.empty() ? "" : "  ", bar);
  }
  return out;
}

std::string text_of(const Conclusion& conclusion) {
  return fmt::format("{}: {}\n", conclusion.verdict, conclusion.story);
}

}  // namespace

std::string render_text(const Document& document) {
  std::string out;
  for (const Block& block : document.blocks)
    out += std::visit([](const auto& part) { return text_of(part); }, block);
  return out;
}

}  // namespace lockstep
