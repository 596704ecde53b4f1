/* Multimodal RoPE: the middle pairs are turned by the row of an image patch, which text does not
 * have, so that it is 0. */
#include "numbers.inc"

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  (void)call;
  const int64_t tokens = x->shape[0], heads = x->shape[1], dim = x->shape[2], half = dim / 2;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < half; ++j) {
        const int64_t of_section = j >= half / 4 && j < half * 5 / 8 ? 0 : ints(positions)[t];
        const int64_t at = (t * heads + h) * dim + j, row = of_section * half + j;
        const double c = load(cos, row), s = load(sin, row);
        store(out, at, (float)(load(x, at) * c - load(x, at + half) * s));
        store(out, at + half, (float)(load(x, at + half) * c + load(x, at) * s));
      }
  return NULL;
}
