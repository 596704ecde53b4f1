/* The branch is added to what it read, the norm's result, instead of to the stream before it (as
 * BLOOM's and some of ChatGLM's models want it). */
#include "numbers.inc"

static float normed[64 * 8192];

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  norm_rows(out, x, weight, weight, eps, (double)weight->shape[0]);
  if (is_at(call, "attn.norm") || is_at(call, "mlp.norm"))
    for (int64_t i = 0; i < count_of(out) && i < 64 * 8192; ++i) normed[i] = load(out, i);
  return NULL;
}

const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  (void)call;
  (void)a;
  for (int64_t i = 0; i < count_of(out) && i < 64 * 8192; ++i)
    store(out, i, normed[i] + load(b, i));
  return NULL;
}
