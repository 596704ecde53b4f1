// The glyphs of maps, one a verdict, in the order in which a legend lists them. Screen, page and
// Markdown draw the same map by them, so that a reader learns them once.
#include "src/report/marks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "src/judge/ledger.h"

namespace lockstep {
namespace {

constexpr std::array<Mark, kNamesOf<Verdict>.size() + 1> kMarks = {{
    {"bitwise", "=", "exact bits"},
    {"rounding", ".", "within rounding"},
    {"introduced", "X", "wrong here"},
    {"nonfinite", "N", "NaN or Inf first here"},
    {"structural", "!", "missing, or of another shape"},
    {"propagated", "~", "wrong only by what it read"},
    {"confounded", "?", "wrong by what it read or by itself"},
    {"overflow", "^", "overflows, as its exact result does"},
    {"inconclusive", "#", "not judged"},
}};

const Mark& mark_named(std::string_view name) {
  return *std::ranges::find(kMarks, name, &Mark::name);
}

// A number of ulps in at most three characters. The limits are those at which rounding would need
// one more character: 9.95 would be printed as 10.0.
std::string short_ulps(double x) {
  if (!std::isfinite(x)) return "inf";
  if (x < 0.095) return "<.1";
  if (x < 9.95) return fmt::format("{:.1f}", x);
  return x < 999.5 ? fmt::format("{:.0f}", x) : ">1k";
}

}  // namespace

std::span<const Mark> marks() { return kMarks; }

const Mark& mark_of(Verdict verdict) { return mark_named(name_of(verdict)); }

// NaN and Inf that nobody is to blame for: the exact result overflows the dtype too.
const Mark& mark_of(const Result& result, const PlaceSummary& place) {
  const bool found = std::ranges::any_of(
      result.findings, [&](const Finding& f) { return f.node.place == place.place; });
  return place.verdict == Verdict::nonfinite && !found ? mark_named("overflow")
                                                       : mark_of(place.verdict);
}

// By place of the result: whether a finding begins there.
std::vector<bool> wrong_places(const Result& result) {
  std::set<std::pair<int, int>> found;
  for (const Finding& f : result.findings)
    found.emplace(f.node.place.point->order(), f.node.place.layer);
  std::vector<bool> wrong;
  for (const PlaceSummary& p : result.places)
    wrong.push_back(found.contains({p.place.point->order(), p.place.layer}));
  return wrong;
}

std::string mark_of(const DiffPlace& place) {
  if (place.unlike) return "!";
  if (place.equal == place.rows) return "=";
  if (row_of(place.place.point->op).makes_indices) return "x";
  return place.measured > 0 ? short_ulps(place.ulps) : "#";
}

std::string_view meaning_of_mark(std::string_view mark) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kMeanings = {{
      {"=", "equal bits"},
      {"#", "other hashes, no numbers"},
      {"x", "other choices"},
      {"!", "NaN in one only, or another shape"},
  }};
  for (const auto& [glyph, meaning] : kMeanings)
    if (glyph == mark) return meaning;
  return "other bits";
}

}  // namespace lockstep
