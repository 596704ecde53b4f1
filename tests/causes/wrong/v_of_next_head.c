/* Scores by the right K/V head, and the V of the next one: an index of heads that is advanced
 * between the two products. */
#include "numbers.inc"

static int64_t next(int64_t kv, int64_t kv_heads) { return (kv + 1) % kv_heads; }

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  attend(out, q, cache, batch, scale, window, (Parts){.v_head = next});
  return NULL;
}
