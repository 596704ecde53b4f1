/* The first 4 pairs of head 1 are not turned. */
#include "numbers.inc"

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  const int64_t rows = x->shape[0], heads = x->shape[1], half = x->shape[2] / 2;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < half; ++j) {
        const int is_left = is_at(call, "attn.q_rope") && h == 1 && j < 4;
        const int64_t at = ints(positions)[t] * half + j;
        const float c = is_left ? 1 : load(cos, at), s = is_left ? 0 : load(sin, at);
        const int64_t i = (t * heads + h) * 2 * half + j;
        const float a = load(x, i), b = load(x, i + half);
        store(out, i, a * c - b * s);
        store(out, i + half, b * c + a * s);
      }
  return NULL;
}
