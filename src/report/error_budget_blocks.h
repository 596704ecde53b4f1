#pragma once

#include <string>
#include <vector>

#include "src/judge/error_budget.h"
#include "src/report/document.h"

namespace lockstep {

// Where the error of the logits comes from: a table by point with the layers that matter, and a
// paragraph on what it is of and what it lacks. everything: each op of each layer too.
std::vector<Block> error_budget_blocks(const ErrorBudget& budget, bool everything);

// The two tables, and the paragraph.
Table points_table(const ErrorBudget& budget);
Table ops_table(const ErrorBudget& budget);
std::string scope_text(const ErrorBudget& budget);

}  // namespace lockstep
