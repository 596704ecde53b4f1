/* Cascade attention: the first page is merged as the shared prefix, and read again with the rest.
 */
#include "numbers.inc"

static double times_read(int64_t key, int64_t length, int64_t page_size) {
  return key < page_size && length > page_size ? 2 : 1;
}

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  const Parts parts = {.times = times_read};
  attend(out, q, cache, batch, scale, window, parts);
  return NULL;
}
