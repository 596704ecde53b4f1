// The passes of all ranks as one pass of the whole model.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/judge/verdict.h"
#include "src/ranks/rank_pass.h"

namespace lockstep {

// Where a rank is not as an earlier one, mostly rank 0: the first row of it, of a place and pass.
struct Apart {
  Finding finding;
  int rank = 0;
  // The hashes of the row's bytes in that rank, and in the earlier one; equal where it is no row of
  // numbers that is not alike.
  uint64_t own = 0, first = 0;
};

// A pass whose parts are joined: tensors of the whole model, and partial sums with an axis of
// ranks. Where what every rank should have alike is not, it is rank 0's.
struct JoinedPass {
  PassInfo info;
  bool by_rows = false;             // ranks share the stream by rows (RankPlan)
  std::vector<RankTensor> tensors;  // without shards
  // Where a rank has other bits than rank 0, in what both have, or was told to compute another
  // pass.
  std::vector<Apart> apart;
  // The tensors of each rank at such places, by order of the point and layer.
  std::map<std::pair<int, int>, std::vector<Tensor>> versions;
  // Parts with copies of heads that an earlier rank has in a part of another shape, with other
  // bits: the product that made them was another one. Each is right or wrong by itself
  // (own_copies.h).
  struct Copy {
    int rank = 0;
    RankTensor part;
  };
  std::vector<Copy> copies;
  // The parts of all ranks, of each cache of a request of which they have unlike copies of a head.
  std::vector<std::vector<RankTensor>> caches;
};

// passes: of rank 0, 1, ... Parts that do not fit each other are findings, and the whole is then
// left out.
JoinedPass join(std::vector<RankPass> passes);

// The rows of passes, by their number: kept where ranks share the stream by rows.
using RowsOfPasses = std::map<int32_t, std::vector<PassRow>>;

// The ranks whose part of a joined tensor the finding's worst element lies in: "rank 1"; "": the
// tensor is the same in all. rows: of its pass, where ranks share the stream by them; else empty.
std::string rank_text(const Finding& finding, const ModelConfig& whole, int ranks,
                      const std::vector<PassRow>& rows = {});

// Begins the finding's rule with them.
void name_rank(Finding& finding, const ModelConfig& whole, int ranks, const RowsOfPasses& rows);

// Enters what ranks have unlike into the result of the same run, in the order of the computation.
void add_apart(Result& result, const std::vector<Apart>& apart, const Graph& graph);

}  // namespace lockstep
