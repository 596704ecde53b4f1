#pragma once

#include <string>

#include "kernels/base/memory.h"
#include "probes/recorder.h"
#include "src/judge/kv_history.h"
#include "src/judge/ledger.h"
#include "src/judge/oracle.h"

namespace lockstep {

// The K and V that attention read of one request: the tensor of attn.kv itself, or, where only its
// hashes were kept, the rows that were written under those hashes. So a row from a wrong page stays
// the input of attention, and attention is not blamed for it.
class CacheRead {
 public:
  CacheRead() = default;
  // kv: of one request, [length, 2, kv_heads, head_dim]; null, or without rows that history knows:
  // there is trouble. What it takes it copies, so that neither has to outlive it. Its own copies
  // share that.
  CacheRead(const RecordedTensor* kv, const KvHistory& history);

  const std::string& trouble() const { return trouble_; }  // empty: none
  KeysValues keys_values() const { return {k_, v_}; }

 private:
  Tensor k_, v_;
  std::string trouble_;
};

// The shape that attn.kv of a request must have by the K that was written for it (null: that is not
// known): its own where K does not say.
Shape cache_shape(const RecordedTensor& kv, const RecordedTensor* k);
inline bool has_cache_shape(const RecordedTensor& kv, const RecordedTensor* k) {
  return kv.shape.rank() == 4 && kv.shape == cache_shape(kv, k);
}

// The hash of each row of attn.kv, of the bytes of K, then V; fewer where they are not known.
std::vector<uint64_t> hashes_of(const RecordedTensor& kv);

// Whether every position of attn.kv ([length, 2, kv_heads, head_dim]) is what was written there: by
// the hashes of its rows, bit for bit. The finding's rule says whether K, V or both are wrong and
// whose were read instead; its element is the one of the first wrong position that is furthest off.
// The rows that were read are known where the tensor was kept or its hash is one of rows that were
// written; else nobody can say whether K or V is wrong, and the finding has no element.
NodeOutcome compare_cache(const RecordedTensor& kv, int layer, const KvHistory& history);

}  // namespace lockstep
