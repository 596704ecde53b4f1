/* Scores capped as Gemma's are, in a model that has no cap (logits_soft_cap handed on). */
#include "numbers.inc"

static double capped(double score) { return 10 * tanh(score / 10); }

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  const Parts parts = {.score = capped};
  attend(out, q, cache, batch, scale, window, parts);
  return NULL;
}
