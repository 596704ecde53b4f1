#pragma once

#include <optional>
#include <span>
#include <string>

#include "src/diff/diff.h"
#include "src/diff/diff_noise.h"
#include "src/diff/same_inputs.h"

namespace lockstep {

// The differences that were found so far at one place, pass and request of two traces.
struct DiffSums {
  DiffResult::Node node;
  Distance distance;
  double worst = 0;  // of a row's elements, where they are known
  int32_t worst_position = 0;
  double furthest = 0;  // relative() of a row
  int32_t furthest_position = 0;
  int32_t last_position = 0;
  bool differs = false, without_digest = false, each_known = true;
  bool asked_digests = false;  // then: whether they say anything
  bool digests_tell = false;
  Distance best;       // of the best logits, where that is all that was kept of them
  double likely = 0;   // the relative difference that they make likely
  std::string reason;  // as in DiffResult::Node, of the row at that position
  int32_t reason_position = 0;
  double reason_worst = -1;
  SameInputs::Rows same_inputs;

  void add(std::span<const double> a, std::span<const double> b, const Row& row);
  // `by`: relative() of the two rows, 0 where it is not known; of several the worst is named.
  void forbid(const Row& row, const char* why, double by);
  // A row of a cache that only one of the two shows. Where both show what one row of the pass
  // reads, that is a difference; else it is counted in `alone`.
  void lack(const Row& row, bool both_read, int64_t& alone);
  // The node, as it differs by more than the limit of it all and of an element, or than two right
  // ops of the same inputs do; nothing: it does not. `share`: what differs too often.
  std::optional<DiffResult::Node> kind(const RelativeDifference& limit,
                                       const std::optional<DiffResult::Node::Share>& share) const;
};

}  // namespace lockstep
