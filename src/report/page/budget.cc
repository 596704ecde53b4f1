// The page's part on the error of the logits: the same tables and the same sentence as on a screen
// (error_budget_blocks.h), with the ops one by one folded away.
#include "src/report/error_budget_blocks.h"
#include "src/report/page/sections.h"

namespace lockstep {

void write_error_budget(Html& html, const Result& result) {
  if (!result.error_budget) return;
  const ErrorBudget& budget = *result.error_budget;
  const Part part(html, "budget", "Where the error of the logits comes from",
                  "The share of each op's own error, right ops' rounding included, in what the "
                  "logits are off from the exact model's. A share under 0 cancels others.");
  html.leaf("p", scope_text(budget));
  if (!budget.none.empty()) return;
  write_table(html, points_table(budget), "tight");
  const auto more = html.open("details");
  html.leaf("summary", "Op by op (alone: were it the only error)");
  write_table(html, ops_table(budget), "tight");
}

}  // namespace lockstep
