// The shares of an error budget as people read them: in tenths of a percent that add up to the
// whole, with points that count for little said together. A share may be negative, where the
// rounding of one op cancels that of another.
#include "src/report/error_budget_blocks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>
#include <utility>

#include "src/judge/ledger.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

constexpr size_t kMostPoints = 8;
constexpr size_t kMostNamed = 3;        // points that count at another
constexpr double kWorthSaying = 0.001;  // of the whole

// Shares are shown in tenths of a percent, as whole numbers, so that they add up as they are read.
int64_t tenths_of(double share) { return std::llround(1000 * share); }

std::string text_of_tenths(int64_t tenths) {
  return fmt::format("{:.1f} %", static_cast<double>(tenths) / 10);
}

std::string percent(double share) { return text_of_tenths(tenths_of(share)); }

// Shares of a whole in tenths, which come to its 1000: those that rounding moved most go the other
// way, none by more than one.
std::vector<int64_t> tenths_of_whole(const std::vector<double>& shares) {
  std::vector<int64_t> tenths;
  for (const double share : shares) tenths.push_back(tenths_of(share));
  const int64_t lacking = 1000 - std::accumulate(tenths.begin(), tenths.end(), int64_t{0});
  const int64_t step = lacking < 0 ? -1 : 1;
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) {
    return static_cast<double>(step) * (1000 * shares[i] - static_cast<double>(tenths[i]));
  });
  for (size_t i = 0; i < order.size() && std::cmp_less(i, std::abs(lacking)); ++i)
    tenths[order[i]] += step;
  return tenths;
}

// "mlp.down (with mlp.gate, mlp.up, not recorded)", "logits (with 17 points of layers 0-5, not
// recorded)".
std::string name_of_point(const ErrorBudget& budget, const Point& point) {
  std::vector<std::string_view> with;
  std::set<int> layers;
  for (const ErrorShare& share : budget.shares)
    if (*share.place.point == point)
      for (const Place& hidden : share.with) {
        if (hidden.layer >= 0) layers.insert(hidden.layer);
        if (std::ranges::count(with, hidden.point->name) == 0) with.push_back(hidden.point->name);
      }
  if (with.empty()) return std::string(point.name);
  if (with.size() <= kMostNamed || layers.empty())
    return fmt::format("{} (with {}, not recorded)", point.name, fmt::join(with, ", "));
  const int first = *layers.begin(), last = *layers.rbegin();
  return fmt::format(
      "{} (with {} points of {}, not recorded)", point.name, with.size(),
      first == last ? fmt::format("layer {}", first) : fmt::format("layers {}-{}", first, last));
}

// The layers that have most of a point, which is shown as so many tenths, and what the others add
// to that or take from it.
std::string layers_text(const PointShare& share, int64_t shown) {
  if (!share.point->per_layer) return "";
  if (share.first < 0) return "all layers";
  const int64_t within = tenths_of(share.within);
  std::string text = share.first == share.last
                         ? fmt::format("layer {}", share.first)
                         : fmt::format("layers {}-{}", share.first, share.last);
  text += fmt::format(": {}", text_of_tenths(within));
  if (within != shown) text += fmt::format(", others {}", text_of_tenths(shown - within));
  return text;
}

}  // namespace

Table points_table(const ErrorBudget& budget) {
  Table table{{{"share", Table::Align::right, 8},
               {"ops", Table::Align::left, 10},
               {"layers", Table::Align::left, 10}},
              {}};
  const std::vector<PointShare> points = by_point(budget);
  std::vector<PointShare> said;
  std::vector<double> shares;
  double others = 0;
  // Shares may be negative, where an error cancels others: their size decides.
  for (const PointShare& share : points) {
    if (said.size() == kMostPoints || std::fabs(share.share) < kWorthSaying) {
      others += share.share;
      continue;
    }
    said.push_back(share);
    shares.push_back(share.share);
  }
  shares.push_back(budget.rest);
  const bool has_others = said.size() < points.size();
  if (has_others) shares.push_back(others);
  const std::vector<int64_t> tenths = tenths_of_whole(shares);
  for (size_t i = 0; i < said.size(); ++i)
    table.rows.push_back({text_of_tenths(tenths[i]), name_of_point(budget, *said[i].point),
                          layers_text(said[i], tenths[i])});
  if (has_others)
    table.rows.push_back({text_of_tenths(tenths.back()),
                          fmt::format("{} other points", points.size() - said.size()), ""});
  table.rows.push_back(
      {text_of_tenths(tenths[said.size()]), "the rest: errors that act on each other", ""});
  return table;
}

Table ops_table(const ErrorBudget& budget) {
  Table table{{{"share", Table::Align::right, 8},
               {"alone", Table::Align::right, 8},
               {"op", Table::Align::left, 24}},
              {}};
  std::vector<const ErrorShare*> shares;
  for (const ErrorShare& share : budget.shares) shares.push_back(&share);
  // Equal ones stay in the order of the computation.
  std::ranges::stable_sort(shares, std::greater<>(), [](const ErrorShare* s) { return s->share; });
  for (const ErrorShare* share : shares)
    table.rows.push_back(
        {percent(share->share), share->alone ? percent(*share->alone) : "", text_of(share->place)});
  return table;
}

std::string scope_text(const ErrorBudget& budget) {
  if (!budget.none.empty()) return fmt::format("nothing to share out: {}", budget.none);
  std::string text =
      fmt::format("{} in all: the error of {} row{} of logits ({:.3g} rms against the fp64 model)",
                  text_of_tenths(1000), budget.rows, budget.rows == 1 ? "" : "s", budget.rms);
  if (budget.recorded < budget.expected)
    text += fmt::format(
        "; {} of the results of ops were recorded, and an error that is made at another counts at "
        "the next that was",
        percent(fraction(budget.recorded, budget.expected)));
  if (!budget.left_out.empty()) text += fmt::format("; without {}", budget.left_out);
  return text;
}

std::vector<Block> error_budget_blocks(const ErrorBudget& budget, bool everything) {
  std::vector<Block> blocks;
  blocks.push_back(Heading{"where the error of the logits comes from"});
  if (budget.none.empty()) blocks.push_back(points_table(budget));
  blocks.push_back(Paragraph{scope_text(budget), 2, 2});
  if (everything && budget.none.empty()) {
    blocks.push_back(Heading{"the same, op by op (alone: were it the only error)"});
    blocks.push_back(ops_table(budget));
  }
  return blocks;
}

}  // namespace lockstep
