/* A bias by distance (ALiBi) is added, of a model that has RoPE: its slopes were not 0. */
#include "numbers.inc"

static double sloped(double score, int64_t head, int64_t heads, int64_t distance) {
  return score - exp2(-8.0 * (double)(head + 1) / (double)heads) * (double)distance;
}

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  const Parts parts = {.at_distance = sloped};
  attend(out, q, cache, batch, scale, window, parts);
  return NULL;
}
