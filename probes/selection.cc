// Which points, layers, positions and requests are meant: globs over the table of points, and lists
// of numbers and ranges ("0,2-4"). A glob that matches no point is an error at once, since a
// misspelt one would leave everything out without a word.
#include "probes/selection.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "kernels/base/printable.h"

namespace lockstep {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool within(const std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t value) {
  return ranges.empty() || std::ranges::any_of(ranges, [&](const auto& range) {
           return value >= range.first && value <= range.second;
         });
}

}  // namespace

// A backslash quotes nothing: no name has a character that would need it.
bool matches_glob(const std::string& glob, const std::string& name) {
  return ::fnmatch(glob.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

Selection::Selection(const std::string& points, const std::string& layers,
                     const std::string& positions, const std::string& requests)
    : layers_(ranges_from(layers, "--layers")),
      positions_(ranges_from(positions, "--positions")),
      requests_(ranges_from(requests, "--requests")) {
  if (!points.empty()) points_.resize(kPoints.size());
  for (const std::string& glob : points.empty() ? std::vector<std::string>{} : split(points)) {
    bool found = false;
    for (size_t i = 0; i < kPoints.size(); ++i) {
      if (!matches_glob(glob, std::string(kPoints[i].name))) continue;
      points_[i] = found = true;
    }
    std::vector<std::string_view> names;
    if (!found)
      for (const Point& p : kPoints) names.push_back(p.name);
    // Several options take points; the glob tells which one is meant.
    check(found, "no point matches '{}'{} (`lockstep points` lists them)", shown(glob),
          found ? "" : did_you_mean(glob, names));
  }
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) text_ += fmt::format("{}{} {}", text_.empty() ? "" : " ", option, value);
  };
  add("--points", points);
  add("--layers", layers);
  add("--positions", positions);
  add("--requests", requests);
}

Selection::Ranges Selection::ranges_from(const std::string& text, const char* option) {
  Ranges ranges;
  for (const std::string& part : text.empty() ? std::vector<std::string>{} : split(text)) {
    const char* const end = part.data() + part.size();
    int64_t first = -1, last = -1;
    auto [at, error] = std::from_chars(part.data(), end, first);
    bool ok = error == std::errc{};
    last = first;
    if (ok && at != end && *at == '-') {
      const auto second = std::from_chars(at + 1, end, last);
      ok = second.ec == std::errc{};
      at = second.ptr;
    }
    check(ok && at == end && first >= 0 && first <= last,
          "{}: numbers and ranges such as 0,3-5 were wanted, found '{}'", option, shown(part));
    ranges.push_back({first, last});
  }
  return ranges;
}

void Selection::check_layers(int layers) const {
  for (const auto& [first, last] : layers_)
    check(last < layers,
          "--layers names layer {}, but the model's layers are 0..{}: name some of those", last,
          layers - 1);
}

bool Selection::has(const Point& point, int layer) const {
  if (!points_.empty() && !points_[point.order()]) return false;
  return !point.per_layer || within(layers_, layer);
}

bool Selection::has(const Row& row) const {
  return has_request(row.request) && within(positions_, row.position);
}

bool Selection::has_request(int32_t request) const { return within(requests_, request); }

bool Selection::is_everything() const { return text_.empty(); }

std::string Selection::text() const { return text_; }

}  // namespace lockstep
