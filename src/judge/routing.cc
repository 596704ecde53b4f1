#include "src/judge/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/stats/moments.h"

namespace lockstep {
namespace {

bool has_rows(const RecordedTensor* tensor, int64_t rows) {
  return tensor && !tensor->data.view().empty() && tensor->data.view().rows() == rows;
}

}  // namespace

void RoutingComparison::add(const PassView& seen, const Pass& exact, const Pass& rounded) {
  for (const RecordedTensor& logits : exact.tensors) {
    if (!(*logits.point == point("mlp.router"))) continue;
    const RecordedTensor* chosen = seen.tensor({&point("mlp.experts"), logits.layer}, -1);
    const RecordedTensor* other = rounded.find(point("mlp.router"), logits.layer);
    const int64_t rows = logits.data.view().empty() ? 0 : logits.data.view().rows();
    if (!has_rows(chosen, rows) || !has_rows(other, rows)) continue;
    for (int64_t i = 0; i < rows; ++i)
      add_row(widened_row(chosen->data, i), widened_row(logits.data, i),
              widened_row(other->data, i));
  }
}

// The margin of a row is the largest logit of the fp64 model that the engine left out, less the
// smallest that it took: above 0 the engine took another expert, and how far above, beside what
// rounding does to these logits, says whether that is a near tie.
void RoutingComparison::add_row(std::span<const double> chosen, std::span<const double> exact,
                                std::span<const double> rounded) {
  std::vector<bool> taken(exact.size());
  for (const double e : chosen)
    if (e >= 0 && e < static_cast<double>(exact.size())) taken[static_cast<size_t>(e)] = true;
  double left_out = -std::numeric_limits<double>::infinity(), least = -left_out, noise = 0;
  for (size_t e = 0; e < exact.size(); ++e) {
    (taken[e] ? least : left_out) =
        taken[e] ? std::min(least, exact[e]) : std::max(left_out, exact[e]);
    noise += (rounded[e] - exact[e]) * (rounded[e] - exact[e]);
  }
  ++rows_;
  const double margin = left_out - least;
  if (!(margin > 0)) return;
  ++differ_;
  margin_ = std::max(margin_, margin / ulp(left_out, dtype_));
  noise = root_mean(noise, std::ssize(exact));
  over_noise_ = std::max(over_noise_, margin / noise);
}

std::vector<std::string> RoutingComparison::notes() const {
  if (differ_ == 0) return {};
  return {fmt::format(
      "{} of {} rows went to other experts than the fp64 model's logits say, by {:.3g} ulp at most "
      "({:.3g} times what rounding does to such logits): both models follow the engine there",
      differ_, rows_, margin_, over_noise_)};
}

}  // namespace lockstep
