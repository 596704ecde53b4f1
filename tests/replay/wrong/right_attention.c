/* An attention that is right. */
#include "tests/causes/wrong/numbers.inc"

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  attend(out, q, cache, batch, scale, window, (Parts){0});
  return NULL;
}
