/* Ops of which a few calls tell whether they are right. */
#include "tests/causes/wrong/numbers.inc"

/* A call of one row, as of a decode step, is turned by the position before its own. */
const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  (void)call;
  const int64_t rows = x->shape[0], heads = x->shape[1], dim = x->shape[2];
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < dim / 2; ++j) {
        const int64_t position = ints(positions)[t] - (rows == 1 && ints(positions)[t] > 0);
        const int64_t at = (t * heads + h) * dim + j, entry = position * (dim / 2) + j;
        const double c = load(cos, entry), s = load(sin, entry);
        const double first = load(x, at), second = load(x, at + dim / 2);
        store(out, at, (float)(first * c - second * s));
        store(out, at + dim / 2, (float)(second * c + first * s));
      }
  return NULL;
}

/* Right, though by a border of rounding it takes the other side at times: in fp32 by the
 * exponential that a device has, to the base 2, and the product first. */
const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call;
  for (int64_t i = 0; i < count_of(out); ++i) {
    const float g = load(gate, i);
    store(out, i, g * load(up, i) / (1 + exp2f(-g * 1.4426950408889634f)));
  }
  return NULL;
}
