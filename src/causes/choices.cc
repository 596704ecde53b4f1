// A choice is explained by the ranks of what was chosen among the values: 0, 1, .. k - 1 would be
// right, in any order where no order was promised. One index of a row is also held against what
// other rows and parts of the vocabulary have. A way to go wrong that knows no rows is refuted by a
// right row that it would have made wrong.
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

// Right rows of a pass that are looked at: one may be of a vocabulary.
constexpr size_t kMostRight = 64;
constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

// A way to go wrong: how many rows it explains, how many right ones it would have otherwise, and
// the indices that it can choose in any row.
struct Way {
  int64_t explained = 0, refuting = 0;  // rows
  int64_t first = 0, end = kNoEnd;
};
using Ways = std::map<std::string, Way>;

void add(Ways& ways, const std::string& says, int64_t first = 0, int64_t end = kNoEnd) {
  Way& way = ways[says];
  ++way.explained;
  way.first = first, way.end = end;
}

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

// The index of the number of a row that is furthest from 0.
int64_t largest_unsigned(const TensorView& values, int64_t row) {
  const int64_t width = values.row_size();
  int64_t size = 0;
  for (int64_t i = 0; i < width; ++i)
    if (std::fabs(value_at(values, row * width + i)) >
        std::fabs(value_at(values, row * width + size)))
      size = i;
  return size;
}

constexpr const char* kOfFirstRow = "the choice of the pass's first row in every row";
constexpr const char* kUnsigned = "the largest without its sign";

// One choice of a row, which is not the index of its largest value.
void explain_choice(const TensorView& values, int64_t row, int64_t index, Ways& ways) {
  const int64_t width = values.row_size(), right = largest_of(values, row, 0, width);
  if (std::abs(index - right) == 1) add(ways, fmt::format("the index {:+d}", index - right));
  for (const int64_t beside : {row - 1, row + 1})
    if (beside >= 0 && beside < values.rows() && index == largest_of(values, beside, 0, width))
      add(ways, fmt::format("the choice of the row {:+d}", beside - row));
  if (row > 0 && index == largest_of(values, 0, 0, width)) add(ways, kOfFirstRow);
  // A part of the vocabulary: of a rank, of a block, or what an index of few bits reaches.
  std::set<int64_t> ends = {width - 1, width / 2, width / 4, width / 8, 3 * (width / 4)};
  for (int64_t power = 16; power < width; power *= 2) ends.insert(power);
  for (const int64_t end : ends) {
    if (end < 1 || right < end) continue;
    if (index == largest_of(values, row, 0, end))
      add(ways, fmt::format("the largest of the first {} alone", end), 0, end);
    if (index == right % end) add(ways, fmt::format("the index modulo {}", end), 0, end);
  }
  for (const int64_t first : {int64_t{1}, width / 2})
    if (right < first && index == largest_of(values, row, first, width))
      add(ways, fmt::format("the largest without the first {}", first), first);
  if (index == largest_unsigned(values, row)) add(ways, kUnsigned);
  if (index >= 0 && index < width &&
      value_at(values, row * width + index) == value_at(values, row * width + right))
    add(ways, "a later one of equal values");
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

// The choices of a row of a record.
std::span<const int32_t> choices_of(const TensorView& chosen, int64_t row) {
  const int64_t k = chosen.row_size();
  return {chosen.as<const int32_t>() + row * k, static_cast<size_t>(k)};
}

// One row's choices of several, which are not the largest.
void explain_choices(const TensorView& values, int64_t row, std::span<const int32_t> chosen,
                     const std::vector<int64_t>& ranks, Ways& ways) {
  const int64_t width = values.row_size(), k = std::ssize(chosen);
  const auto each = [&](auto of) {
    for (int64_t c = 0; c < k; ++c)
      if (ranks[c] != of(c)) return false;
    return true;
  };
  if (each([&](int64_t c) { return k - 1 - c; })) add(ways, "choices in opposite order");
  const bool others =
      std::ranges::all_of(ranks, [&](int64_t rank) { return rank >= 0 && rank < k; });
  if (k <= 16 && !others) add(ways, fmt::format("chosen by rank: {}", fmt::join(ranks, ", ")));
  for (int64_t end = k; end < width; ++end)
    if (is_top_of_first(values, row, end, chosen))
      add(ways, fmt::format("the largest of the first {} alone", end), 0, end);
  bool first = true;
  for (int64_t c = 0; c < k; ++c) first = first && chosen[c] == c;
  if (first) add(ways, "the first ones, whatever their values", 0, k);
  if (others && std::set<int64_t>(ranks.begin(), ranks.end()).size() == ranks.size())
    add(ways, "the right choices in another order");
}

// Whether a right row would have been wrong that way.
bool refutes(const TensorView& values, int64_t row, std::span<const int32_t> chosen,
             const std::string& says, const Way& way) {
  const auto [least, most] = std::ranges::minmax(chosen);
  if (least < way.first || most >= way.end) return true;
  const int64_t width = values.row_size();
  if (says == kOfFirstRow) return row > 0 && most != largest_of(values, 0, 0, width);
  if (says != kUnsigned) return false;
  const auto size = [&](int64_t i) { return std::fabs(value_at(values, row * width + i)); };
  return size(most) < size(largest_unsigned(values, row));
}

// Leaves out the ways that as many of the right rows refute as there are rows that they explain:
// some may have been spared, as those of another tile are. Nor does a way say more than another
// that explains as many and that fewer refute.
void drop_refuted(const TensorView& values, const TensorView& chosen,
                  const std::vector<int64_t>& right, Ways& ways) {
  const size_t apart = (right.size() + kMostRight - 1) / kMostRight;  // spread over the pass
  for (auto& [says, way] : ways)
    for (size_t i = 0; i < right.size(); i += apart)
      if (refutes(values, right[i], choices_of(chosen, right[i]), says, way))
        way.refuting += static_cast<int64_t>(apart);
  const Ways all = ways;
  std::erase_if(ways, [&](const auto& one) {
    const Way& way = one.second;
    return way.refuting >= way.explained || std::ranges::any_of(all, [&](const auto& other) {
             return other.second.explained >= way.explained && other.second.refuting < way.refuting;
           });
  });
}

}  // namespace

ExactNode choices_explained(const RecordedTensor& got, const TensorView& values, int32_t request,
                            Ties ties) {
  ExactNode node;
  Ways ways;
  const TensorView chosen = got.data;
  const int64_t k = chosen.row_size(), width = values.row_size();
  std::vector<int64_t> right;
  bool others_wrong = false;
  for (size_t r = 0; r < got.rows.size(); ++r) {
    const bool own = got.rows[r].request == request;
    if (!own && right.size() >= kMostRight) continue;
    const int64_t row = r;
    const std::vector<double> numbers = widened_row(values, row);
    if (is_right_choice(numbers, widened_row(chosen, row), ties)) {
      // Beside NaN any choice is right, and says nothing.
      const bool tells = std::ranges::none_of(numbers, [](double x) { return std::isnan(x); });
      if (tells) right.push_back(row);
      continue;
    }
    others_wrong = others_wrong || !own;
    if (!own) continue;
    ++node.wrong;
    const std::span<const int32_t> of_row = choices_of(chosen, row);
    std::vector<int64_t> ranks;
    for (const int32_t index : of_row) ranks.push_back(rank_of(values, row, index));
    bool runners_up = true, smallest = true;
    for (int64_t c = 0; c < k; ++c) {
      runners_up = runners_up && ranks[c] == c + 1;
      smallest = smallest && ranks[c] == width - 1 - c;
    }
    if (runners_up)
      add(ways, k == 1 ? "the runner-up chosen for the largest" : "the largest left out");
    if (smallest) add(ways, "the smallest chosen");
    if (k == 1)
      explain_choice(values, row, of_row[0], ways);
    else
      explain_choices(values, row, of_row, ranks, ways);
  }
  // A bug that is in several requests may have spared others.
  if (others_wrong)
    std::erase_if(right, [&](int64_t row) { return got.rows[row].request != request; });
  drop_refuted(values, chosen, right, ways);
  for (const auto& [says, way] : ways) node.causes.push_back({says, way.explained});
  return node;
}

}  // namespace lockstep
