// Divergences of the second trace's choices from the first's, in nats and fp64, over rows whose
// logits both kept as numbers; a row without a finite largest logit has none.
#include "src/diff/diff_logits.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

// log sum exp, of which the largest is taken out.
double log_sum(std::span<const double> logits) {
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - top);
  return top + std::log(sum);
}

}  // namespace

void LogitsDistance::add(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size() || a.empty()) return;
  const double of_a = log_sum(a), of_b = log_sum(b);
  double kl = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double log_p = a[i] - of_a;
    if (const double p = std::exp(log_p); p > 0) kl += p * (log_p - (b[i] - of_b));
  }
  if (!std::isfinite(of_a) || !std::isfinite(of_b)) return;
  kl = std::max(kl, 0.0);  // but for rounding it is never less
  ++sums_.rows;
  sums_.kl_mean += kl;  // a sum, until of_all()
  sums_.kl_max = std::max(sums_.kl_max, kl);
}

std::optional<DiffResult::Logits> LogitsDistance::of_all() const {
  if (sums_.rows == 0) return {};
  DiffResult::Logits all = sums_;
  all.kl_mean /= static_cast<double>(all.rows);
  return all;
}

// Tokens that one of the two names alone are left out, for the other's logit of them is not known;
// rows with none in common are unlike.
bool add_best(const TopLogits* a, const TopLogits* b, Distance& distance) {
  if (a == nullptr || b == nullptr || a->ids.empty() || b->ids.empty()) return false;
  bool any = false;
  for (size_t i = 0; i < a->ids.size(); ++i) {
    const auto same = std::ranges::find(b->ids, a->ids[i]);
    if (same == b->ids.end()) continue;
    any = true;
    distance.add(a->values[i], b->values[same - b->ids.begin()]);
  }
  distance.nonfinite = distance.nonfinite || !any;
  return true;
}

}  // namespace lockstep
