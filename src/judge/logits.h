#pragma once

#include <map>
#include <optional>
#include <vector>

#include "probes/recorder.h"
#include "src/judge/verdict.h"

namespace lockstep {

// Compares the engine's logits with those of the model in fp64, row by row. A choice that differs
// is explained when the fp64 model prefers its own by no more than 6 sqrt(2) s, where s is the rms
// over its 50 best of (the model in the run's dtype - the model in fp64): both candidates then lie
// within what correct rounding moves them.
class LogitsComparison {
 public:
  explicit LogitsComparison(DType dtype) : dtype_(dtype) {}

  // Rows that `exact` or `rounded` lack, or that were kept as digests, are left out.
  void add(const KeptTensor* got, const KeptTensor* exact, const KeptTensor* rounded);

  std::optional<LogitsSummary> summary() const;  // nothing when no row was compared
  std::vector<Flip> flips(int32_t request) const;
  int64_t flips() const { return summary_.compared - summary_.argmax_equal; }

 private:
  void add_row(const Row& row, std::span<const double> got, std::span<const double> exact,
               std::span<const double> rounded);

  DType dtype_;
  LogitsSummary summary_;
  double kl_sum_ = 0;
  std::map<int32_t, std::vector<Flip>> flips_;
};

}  // namespace lockstep
