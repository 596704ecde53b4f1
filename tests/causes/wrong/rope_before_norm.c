/* Q is turned before it is normed, and not afterwards, in all layers but the first, which tells the
 * others the positions of the pass. A norm over a head does not notice, but for its gain. */
#include "numbers.inc"

static float cosine[1 << 20], sine[1 << 20]; /* of each row of the pass */

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  const int64_t width = weight->shape[0], half = width / 2;
  if (!is_at(call, "attn.q_norm") || call->layer == 0) {
    norm_rows(out, x, weight, weight, eps, (double)width);
    return NULL;
  }
  const int64_t rows = x->shape[0], heads = count_of(x) / rows / width;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = (t * heads + h) * width;
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += pow(load(x, at + i), 2);
      const double scale = 1 / sqrt(squares / (double)width + eps);
      for (int64_t j = 0; j < half; ++j) {
        const double c = cosine[t * half + j], s = sine[t * half + j];
        const double a = load(x, at + j) * scale, b = load(x, at + j + half) * scale;
        store(out, at + j, (float)((a * c - b * s) * load(weight, j)));
        store(out, at + j + half, (float)((b * c + a * s) * load(weight, j + half)));
      }
    }
  return NULL;
}

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  const int64_t rows = x->shape[0], half = x->shape[2] / 2;
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t position = ints(positions)[t];
    for (int64_t j = 0; j < half && call->layer == 0; ++j) {
      cosine[t * half + j] = load(cos, position * half + j);
      sine[t * half + j] = load(sin, position * half + j);
    }
    if (!is_at(call, "attn.q_rope") || call->layer == 0) rotate_row(out, x, cos, sin, t, position);
  }
  for (int64_t i = 0; i < count_of(x) && is_at(call, "attn.q_rope") && call->layer > 0; ++i)
    store(out, i, load(x, i));
  return NULL;
}
