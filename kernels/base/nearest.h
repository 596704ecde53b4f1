#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// How many characters must be put in, left out or exchanged to make `b` of `a` (Levenshtein).
inline int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);  // distances of the prefix of a to every prefix of b
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = std::exchange(row[0], static_cast<int>(i) + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const int exchanged = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({exchanged, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// The known name that a misspelt one probably means, for sentences to people; `names` is not empty.
inline std::string nearest(std::string_view name, std::span<const std::string_view> names) {
  return std::string(*std::ranges::min_element(
      names, {}, [name](std::string_view known) { return edit_distance(name, known); }));
}

}  // namespace lockstep
