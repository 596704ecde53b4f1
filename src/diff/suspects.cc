// This file picks what a comparison names. A selection may leave out the place where two traces
// part, and show the distance that comes from there alone, which the distance of its inputs
// explains; so the places before it are looked at as well, and named where they are what differs.
#include "src/diff/suspects.h"

#include <cmath>

#include "src/judge/ledger.h"
#include "src/stats/moments.h"

namespace lockstep {

void Suspects::add(const DiffSums& sums, const RelativeDifference& limit,
                   const std::optional<DiffResult::Node::Share>& share, bool hides_a_choice,
                   int64_t unmeasured) {
  const DiffResult::Node& node = sums.node;
  const bool further = node.relative > (furthest ? furthest->relative : 0);
  if (further && within(node.relative, node.limit)) furthest = node;
  if (!bits) bits = node;
  if (!doubt && !within(sums.likely, limit.all)) {
    doubt = node;
    doubt->relative = sums.likely;
  }
  if (!kind) add_kind(sums, limit, share, hides_a_choice, unmeasured);
}

void Suspects::add_kind(const DiffSums& sums, const RelativeDifference& limit,
                        const std::optional<DiffResult::Node::Share>& share, bool hides_a_choice,
                        int64_t unmeasured) {
  const std::optional<DiffResult::Node> node = sums.kind(limit, share);
  if (!node) return;
  if (node->reason.empty() && std::isfinite(node->relative) && hides_a_choice) {
    if (hidden_choice.empty()) hidden_choice = text_of(node->id.place);
    return;
  }
  kind = node;
  unmeasured_before = unmeasured;
}

void put_suspects(DiffResult& result, const Suspects& selected, const Suspects& before) {
  result.first_bits = selected.bits;
  result.furthest = selected.furthest;
  const bool cut_off = selected.bits && !selected.kind;
  result.kind_before = cut_off && before.kind;
  result.first_kind = result.kind_before ? before.kind : selected.kind;
  result.unmeasured_before =
      result.kind_before ? before.unmeasured_before : selected.unmeasured_before;
  result.first_doubt = cut_off && !selected.doubt ? before.doubt : selected.doubt;
}

}  // namespace lockstep
