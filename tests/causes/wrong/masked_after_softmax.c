/* Weights times a mask of ones and zeros, which do not add up to 1 then. */
#include "numbers.inc"

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  const Parts parts = {.masked = 2};
  attend(out, q, cache, batch, scale, window, parts);
  return NULL;
}
