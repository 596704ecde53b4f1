#include "src/diff/share_cuts.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/judge/shares.h"
#include "traces/run_facts.h"

namespace lockstep {

std::vector<int64_t> ShareCuts::begins_of(DiffSide& side, const ShownRow& row, Lengths& lengths) {
  const int64_t page_size = run_facts_of(side.trace().manifest()).page_size;
  const Shape& shape = row.tensor->shape;
  if (page_size <= 0 || shape.rank() < 3 || shape[1] < 1) return {};
  const auto [length, fresh] = lengths.try_emplace({row.pass, row.row().request}, 0);
  if (fresh)
    for (const PassRow& r : side.pass(row.pass).info.rows)
      if (r.row.request == row.row().request)
        length->second = std::max<int64_t>(length->second, r.row.position + 1);
  std::vector<int64_t> begins = share_begins(length->second, page_size, shape[1]);
  for (int64_t& begin : begins) begin = std::min<int64_t>(begin, row.row().position + 1);
  return begins;
}

bool ShareCuts::unlike(DiffSide& a, const ShownRow& x, DiffSide& b, const ShownRow& y) {
  if (!x.tensor->point->is_of_shares()) return false;
  const std::vector<int64_t> of_x = begins_of(a, x, lengths_a_), of_y = begins_of(b, y, lengths_b_);
  const bool found = !of_x.empty() && !of_y.empty() && of_x != of_y;
  rows_ += found;
  return found;
}

std::string ShareCuts::sentence() const {
  if (rows_ == 0) return "";
  return fmt::format(
      "{} row{} of attn.partial and attn.lse {} of other keys in the two, whose attention is cut "
      "elsewhere: {} not compared",
      rows_, rows_ == 1 ? "" : "s", rows_ == 1 ? "is" : "are", rows_ == 1 ? "it was" : "they were");
}

}  // namespace lockstep
