#pragma once

#include <optional>
#include <span>

#include "probes/recorder.h"
#include "src/diff/diff.h"
#include "src/diff/diff_noise.h"

namespace lockstep {

// Sums up how far apart two traces' logits are as distributions over the vocabulary.
class LogitsDistance {
 public:
  // One row of each. A row with NaN or +Infinity is no distribution, and is left out.
  void add(std::span<const double> a, std::span<const double> b);
  std::optional<DiffResult::Logits> of_all() const;  // nothing: no row

 private:
  DiffResult::Logits sums_;
};

// Adds the logits of the tokens that are among the best of both; false where one was not kept.
// Where no token is, the two have nothing to do with each other.
bool add_best(const TopLogits* a, const TopLogits* b, Distance& distance);

}  // namespace lockstep
