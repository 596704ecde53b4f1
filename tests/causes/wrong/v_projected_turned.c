/* A fused product of q, k and v whose rotation covers V too, in all layers but the first, which
 * tells the others the angles of the pass. */
#include "numbers.inc"

static float cosine[1 << 20], sine[1 << 20]; /* of each row of the pass */
static int64_t half;

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  half = x->shape[2] / 2;
  for (int64_t t = 0; t < x->shape[0]; ++t) {
    const int64_t position = ints(positions)[t];
    for (int64_t j = 0; j < half && call->layer == 0; ++j) {
      cosine[t * half + j] = load(cos, position * half + j);
      sine[t * half + j] = load(sin, position * half + j);
    }
    rotate_row(out, x, cos, sin, t, position);
  }
  return NULL;
}

const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* w, const DLTensor* bias) {
  const int64_t n = w->shape[0], k = w->shape[1], rows = count_of(x) / k;
  if (!is_at(call, "attn.v") || call->layer == 0) {
    multiply(out, x, w, bias, NULL, k);
    return NULL;
  }
  double* row = malloc((size_t)n * sizeof *row);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t o = 0; o < n; ++o) {
      row[o] = bias ? load(bias, o) : 0;
      for (int64_t i = 0; i < k; ++i) row[o] += (double)load(x, t * k + i) * load(w, o * k + i);
    }
    for (int64_t o = 0; o < n; ++o) {
      const int64_t d = o % (2 * half);
      const double c = cosine[t * half + d % half], s = sine[t * half + d % half];
      store(out, t * n + o,
            (float)(d < half ? row[o] * c - row[o + half] * s : row[o] * c + row[o - half] * s));
    }
  }
  free(row);
  return NULL;
}
