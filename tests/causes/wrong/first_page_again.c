/* The first page is read in the place of every other one: the loop forgets to advance its pointer
 * into the page table. */
#include "numbers.inc"

static int64_t in_first_page(const int32_t* table, int64_t key, int64_t page_size) {
  return table[0] * page_size + key % page_size;
}

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  const Parts parts = {.slot = in_first_page};
  attend(out, q, cache, batch, scale, window, parts);
  return NULL;
}
