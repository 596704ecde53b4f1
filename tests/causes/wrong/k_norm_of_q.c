/* A fused QK-norm that takes q's gain for k too. */
#include "numbers.inc"

static float gains_of_q[1024];

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  const int64_t width = weight->shape[0];
  if (is_at(call, "attn.q_norm"))
    for (int64_t i = 0; i < width && i < 1024; ++i) gains_of_q[i] = load(weight, i);
  DLTensor gains = *weight;
  if (is_at(call, "attn.k_norm")) {
    gains.data = gains_of_q;
    gains.byte_offset = 0;
    gains.dtype.code = kDLFloat;
    gains.dtype.bits = 32;
  }
  norm_rows(out, x, weight, &gains, eps, (double)width);
  return NULL;
}
