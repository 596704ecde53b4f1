// Rows are drawn by Floyd's algorithm (Bentley and Floyd 1987) from a generator that the node and
// the seed start (splitmix64), so that no memory of what was drawn is needed.
#include "src/judge/row_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace lockstep {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Evenly of [0, count): 2^64 is so much more than any count that the remainder is no bias.
  size_t below(size_t count) { return next() % count; }
  void mix(int64_t value) { state_ = next() ^ static_cast<uint64_t>(value); }

 private:
  uint64_t state_;
};

}  // namespace

double chance_of_any(int64_t wrong, int64_t drawn, int64_t rows) {
  double none = 1;
  for (int64_t i = 0; i < drawn && none > 0; ++i)
    none *= std::max(0.0, static_cast<double>(rows - wrong - i) / static_cast<double>(rows - i));
  return 1 - none;
}

void JudgedRows::add(int64_t judged_rows, int64_t rows) {
  judged += judged_rows;
  expected += rows;
  if (judged_rows == rows) return;
  // The lesser share: judged_rows / rows < of_node / node_rows.
  if (!all() && judged_rows * node_rows >= of_node * rows) return;
  of_node = judged_rows;
  node_rows = rows;
}

double JudgedRows::power() const {
  return all() ? 1 : chance_of_any((node_rows + kOneIn - 1) / kOneIn, of_node, node_rows);
}

bool draws_rows(const Point& point) { return !point.is_cache() && !row_of(point.op).makes_indices; }

std::vector<size_t> drawn_rows(const RowsToJudge& asked, const Place& place, int32_t pass,
                               int32_t request, size_t rows) {
  std::vector<size_t> drawn;
  if (asked.all() || std::cmp_less_equal(rows, asked.most)) {
    for (size_t i = 0; i < rows; ++i) drawn.push_back(i);
    return drawn;
  }
  Random random(asked.seed);
  for (const int64_t part : {place.point->order(), place.layer, pass, request}) random.mix(part);
  std::set<size_t> some;
  for (size_t last = rows - static_cast<size_t>(asked.most); last < rows; ++last) {
    const size_t one = random.below(last + 1);
    some.insert(some.contains(one) ? last : one);
  }
  return {some.begin(), some.end()};
}

NodeRows drawn_of(const RowsToJudge& asked, const Place& place, int32_t pass,
                  const NodeRows& node) {
  NodeRows drawn{.request = node.request, .rows = {}, .tokens = {}};
  for (const size_t i : drawn_rows(asked, place, pass, node.request, node.rows.size())) {
    drawn.rows.push_back(node.rows[i]);
    drawn.tokens.push_back(node.tokens[i]);
  }
  return drawn;
}

std::string text_of(const JudgedRows& rows) {
  return fmt::format("{} of {} rows of a node at the least, {:.2g} % of all, drawn by seed {}",
                     rows.of_node, rows.node_rows,
                     100 * static_cast<double>(rows.judged) / static_cast<double>(rows.expected),
                     rows.asked.seed);
}

std::string power_text(const JudgedRows& rows) {
  return fmt::format("a bug in one row in {} of such a node shows with probability {:.2f}",
                     JudgedRows::kOneIn, rows.power());
}

}  // namespace lockstep
