// The document on a screen. Text is broken at the width of the screen; a table that is wider gets
// narrower gaps, then a narrower column of text, and then continues below, each part beside the
// first column again. Colour repeats what a word or glyph says already, so that nothing is lost
// without it.
//
// On what is no terminal the width is 80 columns, whoever looks, and the last line, the verdict, is
// never broken: scripts read it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "src/report/render.h"
#include "src/screen/wrap.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

constexpr int kBar = 50;           // columns of the longest bar of a chart
constexpr size_t kLeastText = 16;  // columns that a column of text is made no narrower than

// Colours never say what no word or glyph says.
constexpr const char kStrong[] = "1", kGood[] = "32", kBad[] = "1;31", kUnsure[] = "33";

using Lines = std::vector<std::vector<std::string>>;  // a table's cells as texts, names first

std::string pad(size_t columns) { return std::string(columns, ' '); }

std::string without_end_blanks(const std::string& text) {
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::string shown(const Cell& cell, const char* number_format) {
  if (const auto* text = std::get_if<std::string>(&cell)) return screen_text(*text);
  if (const auto* whole = std::get_if<int64_t>(&cell)) return std::to_string(*whole);
  return fmt::format(fmt::runtime(number_format), std::get<double>(cell));
}

// The colour of a glyph of a map (marks.h): wrong, or in doubt.
const char* colour_of_glyph(const std::string& glyph) {
  if (glyph == "X" || glyph == "N" || glyph == "!") return kBad;
  return glyph == "~" || glyph == "?" || glyph == "^" || glyph == "#" ? kUnsure : nullptr;
}

// Draws the blocks of one document on one screen.
class TextRenderer {
 public:
  explicit TextRenderer(const Screen& screen)
      : width_(std::max(screen.width, 1)), colour_(screen.colour), terminal_(screen.terminal) {}

  std::string operator()(const Heading& heading) const {
    std::string out = "\n";
    if (!heading.text.empty()) out += prose(heading.text, 0, 0, /*strong=*/true);
    return out;
  }

  std::string operator()(const Paragraph& p) const {
    return prose(p.text, p.indent, p.hang, p.strong);
  }

  std::string operator()(const List& list) const {
    std::string out = list.title.empty() ? "" : prose(list.title, 0, 0, false);
    for (const std::string& item : list.items) out += prose(item, 2, 4, false);
    return out;
  }

  std::string operator()(const KeyValues& pairs) const {
    std::string out;
    const size_t indent = pairs.indent;
    const size_t key_width = pairs.key_width;
    // On a screen with no room beside the names, values stand below them.
    const bool below = indent + key_width + kLeastText > width_;
    for (const auto& [key, value] : pairs.entries) {
      const size_t hang = below ? std::min(indent + 2, width_ / 2) : indent + key_width;
      std::string head =
          pad(below ? std::min(indent, width_ / 2) : indent) + coloured(screen_text(key), kStrong);
      if (below) out += std::exchange(head, pad(hang)) + "\n";
      if (!below) head += pad(key_width - std::min(key_width, columns_of(screen_text(key))));
      for (const std::string& line : wrapped(screen_text(value, true), room(hang)))
        out += without_end_blanks(std::exchange(head, pad(hang)) + line) + "\n";
    }
    return out;
  }

  std::string operator()(const Table& table) const {
    if (table.columns.empty()) return "";
    Lines lines(1);
    for (const Table::Column& column : table.columns) lines[0].push_back(screen_text(column.name));
    for (const auto& row : table.rows) {
      auto& line = lines.emplace_back();
      for (const Cell& cell : row) line.push_back(shown(cell, table.number_format));
    }
    const std::string title = table.title.empty() ? "" : prose(table.title, 0, 0, false);
    std::vector<size_t> widths = widths_of(table, lines);
    const size_t gap = gap_of(table, widths);
    fit_text(table, gap, widths);
    std::string out = title;
    // At least one column stands beside the first, be the screen as narrow as it may.
    for (size_t from = 1; from == 1 || from < widths.size();) {
      size_t to = from, all = widths[0];
      while (to < widths.size() && (to == from || all + gap + widths[to] <= width_))
        all += gap + widths[to++];
      if (from > 1) out += "\n";
      out += part_of(table, lines, widths, gap, from, to);
      from = std::max(to, from + 1);
    }
    return out;
  }

  std::string operator()(const Bars& bars) const {
    int64_t most = 1;
    for (const auto& [name, count] : bars.counts) most = std::max(most, count);
    std::string out;
    for (const auto& [name, count] : bars.counts) {
      const double share = fraction(count, most);
      // 22: the name, the count and the blanks around them.
      const auto longest = static_cast<double>(std::min<size_t>(kBar, room(22)));
      // Rounded up, so that a single one of many still shows.
      const std::string bar(static_cast<size_t>(std::ceil(longest * share)), '#');
      out += fmt::format("  {:<6}{:>12}{}{}\n", name, count, bar.empty() ? "" : "  ", bar);
    }
    return out;
  }

  std::string operator()(const Conclusion& c) const {
    constexpr std::string_view kGoodEnds[] = {"clean", "complete", "alike", "identical", "noise"};
    const char* colour = std::ranges::count(kGoodEnds, c.verdict) > 0          ? kGood
                         : c.verdict == "diverged" || c.verdict == "different" ? kBad
                                                                               : kUnsure;
    const std::string verdict = screen_text(c.verdict);
    std::string out;
    // Scripts read the last line, so that it is never broken for them.
    for (const std::string& line : wrapped(fmt::format("{}: {}", verdict, screen_text(c.story)),
                                           terminal_ ? width_ : SIZE_MAX))
      out += (out.empty() && line.starts_with(verdict)
                  ? coloured(verdict, colour) + line.substr(verdict.size())
                  : line) +
             "\n";
    return out;
  }

 private:
  std::string coloured(const std::string& text, const char* colour) const {
    return colour_ && colour && !text.empty() ? fmt::format("\033[{}m{}\033[0m", colour, text)
                                              : text;
  }

  // At least one column, so that no screen is too narrow to end.
  size_t room(size_t taken) const { return taken + 1 < width_ ? width_ - taken : 1; }

  std::string prose(const std::string& text, size_t indent, size_t hang, bool strong) const {
    std::string out;
    indent = std::min(indent, width_ / 2), hang = std::min(hang, width_ / 2);
    size_t before = indent;
    for (const std::string& line : wrapped(screen_text(text, true), room(std::max(indent, hang)))) {
      const std::string said = coloured(line, strong ? kStrong : nullptr);
      out += without_end_blanks(pad(before) + said) + "\n";
      before = hang;
    }
    return out;
  }

  static std::vector<size_t> widths_of(const Table& table, const Lines& lines) {
    std::vector<size_t> widths;
    for (const Table::Column& column : table.columns) widths.push_back(column.least_width);
    for (const auto& line : lines)
      for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], columns_of(line[i]));
    return widths;
  }

  // Blanks between columns: one where the table is too wide by the others alone.
  size_t gap_of(const Table& table, const std::vector<size_t>& widths) const {
    const size_t gap = table.gap;
    size_t columns = 0;
    for (const size_t width : widths) columns += width;
    const size_t gaps = widths.size() - 1;
    return columns + gap * gaps > width_ && columns + gaps <= width_ ? 1 : gap;
  }

  // Narrows the widest column of text if the table then fits.
  void fit_text(const Table& table, size_t gap, std::vector<size_t>& widths) const {
    size_t all = 0;
    std::optional<size_t> widest;
    for (size_t i = 0; i < widths.size(); ++i) {
      all += widths[i] + (i > 0 ? gap : 0);
      const bool text = !table.is_right_aligned(i) && !table.marks;
      // Numbers and glyphs cannot be broken: half a number is another one.
      if (text && (!widest || widths[i] >= widths[*widest])) widest = i;
    }
    if (all <= width_ || !widest) return;
    const size_t over = all - width_;
    // Where it would get too narrow it stays as it is, and the columns go below each other.
    if (widths[*widest] >= over + kLeastText) widths[*widest] -= over;
  }

  // The first column and those from `from` up to `to`.
  std::string part_of(const Table& table, const Lines& lines, const std::vector<size_t>& widths,
                      size_t gap, size_t from, size_t to) const {
    std::vector<size_t> columns = {0};
    for (size_t i = from; i < to; ++i) columns.push_back(i);
    std::string out;
    for (const auto& line : lines) {
      std::vector<std::vector<std::string>> cells;
      size_t height = 1;
      for (const size_t i : columns)
        height = std::max(
            height, cells.emplace_back(wrapped(i < line.size() ? line[i] : "", widths[i])).size());
      for (size_t part = 0; part < height; ++part) {
        std::string text;
        for (size_t c = 0; c < columns.size(); ++c) {
          const size_t i = columns[c];
          const std::string cell = part < cells[c].size() ? cells[c][part] : "";
          const std::string blanks = pad(widths[i] - std::min(widths[i], columns_of(cell)));
          // The first line is the columns' names.
          const bool glyph = table.marks && &line != lines.data();
          const std::string drawn = coloured(cell, glyph ? colour_of_glyph(cell) : nullptr);
          text += (table.is_right_aligned(i) ? blanks + drawn : drawn + blanks) + pad(gap);
        }
        out += without_end_blanks(text) + "\n";
      }
    }
    return out;
  }

  size_t width_;
  bool colour_, terminal_;
};

}  // namespace

std::string render_text(const Document& document, const Screen& screen) {
  std::string out;
  const TextRenderer renderer(screen);
  for (const Block& block : document.blocks) out += std::visit(renderer, block);
  return out;
}

std::string render_text(const Document& document) { return render_text(document, Screen{}); }

}  // namespace lockstep
