/* RoPE turns V as it turns K: an attention that rotates all that it reads beside the queries. */
#include "numbers.inc"

static double angles[4096]; /* of position 1, by pair */

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  (void)call;
  for (int64_t j = 0; j < x->shape[2] / 2 && cos->shape[0] > 1; ++j)
    angles[j] = atan2(load(sin, x->shape[2] / 2 + j), load(cos, x->shape[2] / 2 + j));
  for (int64_t t = 0; t < x->shape[0]; ++t) rotate_row(out, x, cos, sin, t, ints(positions)[t]);
  return NULL;
}

static double turned(double a, double b, int64_t d, int64_t half, int64_t key) {
  const double angle = angles[d % half] * (double)key;
  return d < half ? a * cos(angle) - b * sin(angle) : b * cos(angle) + a * sin(angle);
}

const char* lockstep_paged_attention(const LockstepCall* call, const DLTensor* out,
                                     const DLTensor* q, const LockstepCache* cache,
                                     const LockstepBatch* batch, float scale, int64_t window) {
  (void)call;
  attend(out, q, cache, batch, scale, window, (Parts){.turned = turned});
  return NULL;
}
