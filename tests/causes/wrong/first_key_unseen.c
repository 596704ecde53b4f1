/* A loop over keys from 1: that of the first token, which most heads look at, is never seen but by
 * itself. */
#include "numbers.inc"

static int64_t from_one(int64_t position) { return position > 0 ? 1 : 0; }

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  const Parts parts = {.first_key = from_one};
  attend(out, q, cache, batch, scale, window, parts);
  return NULL;
}
