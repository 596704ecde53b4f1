// The inputs of one op in one pass, as a trace kept them.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/judge/cache_read.h"
#include "src/judge/kv_history.h"
#include "src/judge/pass_view.h"
#include "src/replay/paged.h"

namespace lockstep {

// Whether the op reads the cache of its layer, or writes it.
bool uses_cache(const Point& point);

// The rows of a pass that one op can be computed for again, and the tensors that it reads there, on
// the CPU. It borrows the pass's tensors, and owns the cache that it fills.
class OpInputs {
 public:
  // Takes the rows of the pass that have all that the op reads, with numbers; of a cache hashes do,
  // where `history` has what was written under them. The pass is borrowed.
  OpInputs(const Pass& kept, const Place& place, const Graph& graph, const KvHistory& history,
           const PoolFacts& pool)
      : OpInputs(kept, place, graph.inputs_of(place), history, pool) {}
  // The same of an op that reads other places than the graph has there, as a fused one does.
  OpInputs(const Pass& kept, const Place& place, const std::vector<Place>& reads,
           const KvHistory& history, const PoolFacts& pool);
  OpInputs(const OpInputs&) = delete;
  OpInputs& operator=(const OpInputs&) = delete;

  const std::string& lacking() const { return lacking_; }  // empty: it is all there
  // Its rows, and page tables for them. Attention takes those of a request that do not follow each
  // other for requests of their own, so that its numbers of requests may be others than in rows().
  const PagedPass& pass() const { return pass_; }
  const std::vector<Row>& rows() const { return rows_; }
  // The tensor of a place, a row for each of rows() or, of logits, for each that has them; empty:
  // the op does not read it.
  TensorView at(const Point& point, int layer) const;
  const HostCache& cache() const { return cache_; }  // of ops that use it

 private:
  std::string pick(const Pass& kept, const Place& place, const std::vector<Place>& reads);
  std::string pick_cache(const Pass& kept, const Place& place, const Place& cache,
                         const KvHistory& history, const PoolFacts& pool);
  void part_requests();

  PagedPass pass_;
  std::vector<Row> rows_;
  std::deque<SelectedRows> picked_;
  std::map<std::pair<int, int>, TensorView> tensors_;  // by order of the point, and layer
  std::deque<CacheRead> caches_;
  HostCache cache_;
  std::string lacking_;
};

}  // namespace lockstep
