// The elements of a case that a folder compares: the worst first, so that the programs' table is
// the same for the same bug.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "kernels/base/check.h"
#include "src/replay/repro_folder.h"

namespace lockstep {
namespace {

constexpr size_t kMostWrong = 48, kMostRight = 16;

void pick(const CaseElements& all, size_t i, const CapturedCall& call, ReproElements& picked) {
  const CaseElements::Output& of = all.output_of(i);
  const auto output = std::ranges::find(call.outputs, of.argument, &CapturedCall::Operand::name);
  check(output != call.outputs.end(), "{} has no output {}", call.function, of.argument);
  const auto row = (i - of.first) / static_cast<size_t>(of.row_size);
  picked.output.push_back(static_cast<int32_t>(output - call.outputs.begin()));
  picked.index.push_back(of.at.at(row) + all.column_of(i));
  picked.want.push_back(all.want[i]);
  picked.limit.push_back(all.limit[i]);
  picked.got.push_back(all.got[i]);
}

// The slots on either side of those that are written, where nobody may write.
void pick_neighbours(const CaseElements& all, const CapturedCall& call, ReproElements& picked) {
  for (const CaseElements::Output& of : all.outputs) {
    if (!of.argument.starts_with("cache.")) continue;
    const auto output = std::ranges::find(call.outputs, of.argument, &CapturedCall::Operand::name);
    const std::set<int64_t> own(of.at.begin(), of.at.end());
    for (const int64_t at : {*own.begin() - of.row_size, *own.rbegin() + of.row_size}) {
      if (at < 0 || at >= output->data.view().count() || own.contains(at)) continue;
      picked.output.push_back(static_cast<int32_t>(output - call.outputs.begin()));
      picked.index.push_back(at);
      picked.want.push_back(std::numeric_limits<double>::quiet_NaN());
      picked.limit.push_back(0);
      picked.got.push_back(std::numeric_limits<double>::quiet_NaN());
    }
  }
}

}  // namespace

ReproElements picked_from(const CaseElements& all, const CapturedCall& call) {
  std::vector<size_t> wrong = all.wrong();
  const auto budgets = [&](size_t i) { return std::fabs(all.got[i] - all.want[i]) / all.limit[i]; };
  std::ranges::stable_sort(wrong, [&](size_t a, size_t b) {
    const double of_a = budgets(a), of_b = budgets(b);
    return !(of_a <= of_b) && of_b == of_b;  // what is no number comes first
  });
  if (wrong.size() > kMostWrong) wrong.resize(kMostWrong);
  ReproElements elements;
  for (const size_t i : wrong) pick(all, i, call, elements);
  for (const CaseElements::Output& of : all.outputs) {
    const size_t end = of.first + of.at.size() * static_cast<size_t>(of.row_size);
    size_t right = 0;
    for (size_t i = of.first; i < end && right < kMostRight / all.outputs.size(); ++i)
      if (!all.is_wrong(i)) pick(all, i, call, elements), ++right;
  }
  pick_neighbours(all, call, elements);
  return elements;
}

}  // namespace lockstep
