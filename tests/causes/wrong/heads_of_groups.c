/* The heads of the result are stored as (head in group, group) instead of (group, head in group).
 */
#include "numbers.inc"

static int64_t transposed(int64_t head, int64_t heads, int64_t kv_heads) {
  const int64_t group = heads / kv_heads;
  return head % group * kv_heads + head / group;
}

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  const Parts parts = {.stored_head = transposed};
  attend(out, q, cache, batch, scale, window, parts);
  return NULL;
}
