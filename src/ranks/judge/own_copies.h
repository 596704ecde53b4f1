#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "src/judge/oracle.h"
#include "src/ranks/judge/join.h"

namespace lockstep {

// Judges the copies of K/V heads of which a joined pass has an earlier rank's, with other bits,
// from a product of another shape. The exact result of the op on what its own rank read decides,
// and in the cache what that rank wrote there. One object for all passes of a run, in their order.
class OwnCopies {
 public:
  OwnCopies(const ModelConfig& whole, int ranks);

  // Those that are wrong, one a copy. oracle: of the whole model; null where the ranks' ops were
  // given the inputs of a model over none: then copies may be two roundings of the op apart.
  std::vector<Apart> judge(const JoinedPass& pass, Oracle* oracle);

 private:
  using Slot =
      std::tuple<int, int, int32_t, int64_t>;  // rank, layer, position, head or K/V heads on

  // The place's tensor as that rank has it; nothing: the pass has none.
  Tensor as_seen_by(int rank, const Place& place, const JoinedPass& pass) const;
  void note_written(const JoinedPass::Copy& copy);
  void judge_op(const JoinedPass::Copy& copy, const JoinedPass& pass, Oracle* oracle,
                std::vector<Apart>& wrong) const;
  void judge_cache(const JoinedPass::Copy& copy, const JoinedPass& pass,
                   std::vector<Apart>& wrong) const;

  std::vector<RankPlan> plans_;
  Graph graph_;
  std::map<Slot, std::set<uint64_t>> written_;  // hashes of a head's K, or V
};

}  // namespace lockstep
