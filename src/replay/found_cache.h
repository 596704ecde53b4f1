// The rows that a pass finds in a cache, told from those that it writes there itself.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "probes/graph.h"
#include "probes/recorder.h"
#include "src/judge/kv_history.h"

namespace lockstep {

// A call that writes a cache answers for the rows that it writes, and for those that it changes
// beside them. A row that an earlier pass left wrong is wrong of that pass alone. So rows that are
// as they were found get the hash of what was written for them, by which they count as right; where
// nothing is known to have been written they stay as they are.
class FoundCache {
 public:
  // k and v: the places whose rows the cache is written with.
  FoundCache(const Place& cache, const Place& k, const Place& v) : cache_(cache), k_(k), v_(v) {}

  // The next pass of the trace. A row is as it was found where it holds what was shown last of that
  // position of the request, or else of the same tokens. A row that was never shown is judged.
  Pass without_found(const Pass& pass);

  // Takes what an op made, in that pass, of caches that hold what the trace has, but for the rows
  // that the op writes.
  std::vector<RecordedTensor> without_given(std::vector<RecordedTensor> made, const Pass& pass,
                                            const std::vector<Row>& writes) const;

 private:
  void remember_writes(const Pass& pass);
  void remember_shown(const RecordedTensor& kv, const std::vector<uint64_t>& hashes);
  uint64_t shown_before(const Row& row) const;  // 0: nothing
  uint64_t right(const Row& row) const { return written_.latest(cache_.layer, row); }

  Place cache_, k_, v_;
  KvHistory written_{/*keep_bytes=*/false};
  std::map<int32_t, std::vector<uint64_t>> shown_;    // hashes by request, by position
  std::unordered_map<uint64_t, uint64_t> of_tokens_;  // the same by the tokens up to there
};

}  // namespace lockstep
