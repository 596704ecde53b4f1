#include "src/report/error_budget_blocks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/judge/ledger.h"

namespace lockstep {
namespace {

constexpr size_t kMostPoints = 8;
constexpr double kWorthSaying = 0.001;  // of the whole

// Nothing has no sign.
std::string percent(double share) {
  return fmt::format("{:.1f} %", std::fabs(share) < 0.0005 ? 0.0 : 100 * share);
}

// "mlp.down (with mlp.gate, mlp.up, which were not recorded)"
std::string name_of_point(const ErrorBudget& budget, const Point& point) {
  std::vector<std::string_view> with;
  for (const ErrorShare& share : budget.shares)
    if (*share.place.point == point)
      for (const Place& hidden : share.with)
        if (std::ranges::count(with, hidden.point->name) == 0) with.push_back(hidden.point->name);
  if (with.empty()) return std::string(point.name);
  return fmt::format("{} (with {}, not recorded)", point.name, fmt::join(with, ", "));
}

std::string layers_text(const PointShare& share) {
  if (!share.point->per_layer) return "";
  if (share.first < 0) return "all layers";
  if (share.first == share.last)
    return fmt::format("layer {}: {}", share.first, percent(share.within));
  return fmt::format("layers {}-{}: {}", share.first, share.last, percent(share.within));
}

}  // namespace

Table points_table(const ErrorBudget& budget) {
  Table table{{{"share", Table::Align::right, 8},
               {"ops", Table::Align::left, 10},
               {"layers", Table::Align::left, 10}},
              {}};
  double others = 0;
  size_t count = 0;
  // Shares may be negative, where an error cancels others: their size decides.
  for (const PointShare& share : by_point(budget)) {
    if (table.rows.size() == kMostPoints || std::fabs(share.share) < kWorthSaying) {
      others += share.share;
      ++count;
      continue;
    }
    table.rows.push_back(
        {percent(share.share), name_of_point(budget, *share.point), layers_text(share)});
  }
  if (count > 0) table.rows.push_back({percent(others), fmt::format("{} other points", count), ""});
  table.rows.push_back({percent(budget.rest), "the rest: errors that act on each other", ""});
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
      fmt::format("{} of the error of {} row{} of logits ({:.3g} rms against the fp64 model)",
                  percent(1 - budget.rest), budget.rows, budget.rows == 1 ? "" : "s", budget.rms);
  if (budget.recorded < budget.expected)
    text += fmt::format(
        "; {} of the results of ops were recorded, and an error that is made at another counts at "
        "the next that was",
        percent(static_cast<double>(budget.recorded) / static_cast<double>(budget.expected)));
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
