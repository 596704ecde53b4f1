/* Pages of K and V, written as [positions, heads, dim], read as [heads, positions, dim]: a kernel
 * for the layout HND in an engine whose cache is NHD. */
#include "numbers.inc"

static int64_t slot_of_head(const int32_t* table, int64_t key, int64_t page_size, int64_t kv,
                            int64_t kv_heads) {
  return (table[key / page_size] * kv_heads + kv) * page_size + key % page_size;
}

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  const Parts parts = {.row = slot_of_head};
  attend(out, q, cache, batch, scale, window, parts);
  return NULL;
}
