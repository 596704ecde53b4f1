/* The halves of a head exchanged before they are turned: x1 sin - x2 cos for the first. */
#include "numbers.inc"

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  (void)call;
  const int64_t rows = x->shape[0], heads = x->shape[1], half = x->shape[2] / 2;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < half; ++j) {
        const int64_t at = ints(positions)[t] * half + j;
        const float c = load(cos, at), s = load(sin, at);
        const int64_t i = (t * heads + h) * 2 * half + j;
        const float a = load(x, i + half), b = load(x, i);
        store(out, i, a * c - b * s);
        store(out, i + half, b * c + a * s);
      }
  return NULL;
}
