#include "kernels/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

// How many characters must be put in, left out, exchanged or swapped with their neighbour to make
// `b` of `a` (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table are enough: the one before the last is for swaps.
  std::vector<int> row(b.size() + 1), before;  // distances of two prefixes of a to all those of b
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    std::vector<int> next(b.size() + 1, static_cast<int>(i) + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      next[j + 1] = std::min({row[j] + (a[i] != b[j]), row[j + 1] + 1, next[j] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
        next[j + 1] = std::min(next[j + 1], before[j - 1] + 1);
    }
    before = std::exchange(row, std::move(next));
  }
  return row.back();
}

}  // namespace

// A name with at most a third of its letters wrong, else one that begins so.
std::string_view nearest(std::string_view name, std::span<const std::string_view> names) {
  constexpr size_t kBeginning = 3;
  std::string_view best;
  // One more than a third of the letters, rounded up: smaller distances are near. Of equally near
  // names the first wins.
  int least = static_cast<int>(name.size() + 1) / 3 + 1;
  for (const std::string_view known : names) {
    // At least as many letters must be put in or left out, and of long names the table is large.
    const auto [shorter, longer] = std::minmax({name.size(), known.size()});
    if (std::cmp_greater_equal(longer - shorter, least)) continue;
    if (const int distance = edit_distance(name, known); distance < least) {
      best = known;
      least = distance;
    }
  }
  if (!best.empty() || name.size() < kBeginning) return best;
  const auto begun = std::ranges::find_if(
      names, [name](std::string_view known) { return known.starts_with(name); });
  return begun == names.end() ? best : *begun;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> names) {
  const std::string_view known = nearest(name, names);
  if (known.empty()) return "";
  return std::string("; did you mean \"").append(known).append("\"?");
}

}  // namespace lockstep
