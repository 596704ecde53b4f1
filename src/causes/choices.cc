// A choice is explained by the ranks of what was chosen among the values: 0, 1, .. k - 1 would be
// right, in any order where no order was promised. One index of a row is also held against what
// other rows and parts of the vocabulary have.
#include "src/causes/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>

namespace lockstep {
namespace {

using Tally = std::map<std::string, int64_t>;

// Where an index stands among the values that it is chosen from, the largest first: 0. Of equal
// values the first one ranks higher, as in kernels/argmax.h and routing.h.
int64_t rank_of(const TensorView& values, int64_t row, int64_t index) {
  const int64_t width = values.row_size();
  if (index < 0 || index >= width) return -1;
  const double own = value_at(values, row * width + index);
  int64_t rank = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double other = value_at(values, row * width + i);
    if (other > own || (other == own && i < index)) ++rank;
  }
  return rank;
}

// The index of the largest of some values of a row, the first of equal ones.
int64_t largest_of(const TensorView& values, int64_t row, int64_t first, int64_t end) {
  const int64_t width = values.row_size();
  int64_t best = first;
  for (int64_t i = first; i < end; ++i)
    if (value_at(values, row * width + i) > value_at(values, row * width + best)) best = i;
  return best;
}
// One choice of a row, which is not the index of its largest value.
void explain_choice(const TensorView& values, int64_t row, int64_t index, Tally& tally) {
  const int64_t width = values.row_size(), right = largest_of(values, row, 0, width);
  if (std::abs(index - right) == 1) ++tally[fmt::format("the index {:+d}", index - right)];
  for (const int64_t beside : {row - 1, row + 1})
    if (beside >= 0 && beside < values.rows() && index == largest_of(values, beside, 0, width))
      ++tally[fmt::format("the choice of the row {:+d}", beside - row)];
  if (row > 0 && index == largest_of(values, 0, 0, width))
    ++tally["the choice of the pass's first row in every row"];
  // A part of the vocabulary: of a rank, of a block, or what an index of few bits reaches.
  std::set<int64_t> ends = {width - 1, width / 2, width / 4, width / 8, 3 * (width / 4)};
  for (int64_t power = 16; power < width; power *= 2) ends.insert(power);
  for (const int64_t end : ends) {
    if (end < 1 || right < end) continue;
    if (index == largest_of(values, row, 0, end))
      ++tally[fmt::format("the largest of the first {} alone", end)];
    if (index == right % end) ++tally[fmt::format("the index modulo {}", end)];
  }
  for (const int64_t first : {int64_t{1}, width / 2})
    if (right < first && index == largest_of(values, row, first, width))
      ++tally[fmt::format("the largest without the first {}", first)];
  int64_t size = 0;
  for (int64_t i = 0; i < width; ++i)
    if (std::fabs(value_at(values, row * width + i)) >
        std::fabs(value_at(values, row * width + size)))
      size = i;
  if (index == size) ++tally["the largest without its sign"];
  if (index >= 0 && index < width &&
      value_at(values, row * width + index) == value_at(values, row * width + right))
    ++tally["a later one of equal values"];
}

// Whether those are the largest of the first `end` values of a row, in any order.
bool is_top_of_first(const TensorView& values, int64_t row, int64_t end,
                     std::span<const int32_t> chosen) {
  const int64_t width = values.row_size();
  double least = std::numeric_limits<double>::infinity();
  for (const int32_t index : chosen) {
    if (index < 0 || index >= end) return false;
    least = std::min(least, value_at(values, row * width + index));
  }
  int64_t above = 0;
  for (int64_t i = 0; i < end; ++i) above += value_at(values, row * width + i) >= least ? 1 : 0;
  return above == std::ssize(chosen);
}

}  // namespace

ExactNode choices_explained(const RecordedTensor& got, const TensorView& values, int32_t request,
                            Ties ties) {
  ExactNode node;
  Tally tally;
  const TensorView chosen = got.data;
  const int64_t k = chosen.row_size(), width = values.row_size();
  for (size_t r = 0; r < got.rows.size(); ++r) {
    if (got.rows[r].request != request) continue;
    const int64_t row = r;
    std::vector<int64_t> ranks;
    for (int64_t c = 0; c < k; ++c)
      ranks.push_back(rank_of(values, row, chosen.as<const int32_t>()[row * k + c]));
    if (is_right_choice(widened_row(values, row), widened_row(chosen, row), ties)) continue;
    ++node.wrong;
    const auto each = [&](auto of) {
      for (int64_t c = 0; c < k; ++c)
        if (ranks[c] != of(c)) return false;
      return true;
    };
    if (each([](int64_t c) { return c + 1; }))
      ++tally[k == 1 ? "the runner-up chosen for the largest" : "the largest left out"];
    if (each([&](int64_t c) { return width - 1 - c; })) ++tally["the smallest chosen"];
    if (k > 1 && each([&](int64_t c) { return k - 1 - c; })) ++tally["choices in opposite order"];
    if (k == 1) explain_choice(values, row, chosen.as<const int32_t>()[row], tally);
    bool first = true, others = true;
    for (int64_t c = 0; c < k; ++c) {
      first = first && chosen.as<const int32_t>()[row * k + c] == c;
      others = others && ranks[c] >= 0 && ranks[c] < k;
    }
    if (k > 1 && k <= 16 && !others)
      ++tally[fmt::format("chosen by rank: {}", fmt::join(ranks, ", "))];
    for (int64_t end = k; k > 1 && end < width; ++end)
      if (is_top_of_first(values, row, end, std::span(chosen.as<const int32_t>() + row * k, k)))
        ++tally[fmt::format("the largest of the first {} alone", end)];
    if (first && k > 1) ++tally["the first ones, whatever their values"];
    if (others && k > 1 && std::set<int64_t>(ranks.begin(), ranks.end()).size() == ranks.size())
      ++tally["the right choices in another order"];
  }
  for (const auto& [says, rows] : tally) node.causes.push_back({says, rows});
  return node;
}

}  // namespace lockstep
