#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/diff/diff.h"
#include "src/diff/diff_noise.h"
#include "src/diff/diff_sums.h"

namespace lockstep {

// The first nodes that stand out of some, which are entered in graph order.
struct Suspects {
  std::optional<DiffResult::Node> bits, kind, doubt, furthest;  // as DiffResult has them
  int64_t unmeasured_before = 0;                                // DiffResult's, of `kind`
  // The first place that only a choice of experts before may explain; "": none.
  std::string hidden_choice;

  // A node of other bits. limit: of noise there; hides_a_choice: experts are chosen before it,
  // which is not shown; unmeasured: rows in the places before it of which no numbers tell.
  void add(const DiffSums& sums, const RelativeDifference& limit,
           const std::optional<DiffResult::Node::Share>& share, bool hides_a_choice,
           int64_t unmeasured);

 private:
  void add_kind(const DiffSums& sums, const RelativeDifference& limit,
                const std::optional<DiffResult::Node::Share>& share, bool hides_a_choice,
                int64_t unmeasured);
};

// Enters those of a selection. Noise there is held to what lies before it: where that is no noise
// itself, nothing of the selection is known to be.
void put_suspects(DiffResult& result, const Suspects& selected, const Suspects& before);

}  // namespace lockstep
