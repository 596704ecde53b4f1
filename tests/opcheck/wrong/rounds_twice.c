/* Ops that round on the way, as transformers does: right where that is declared, or not even then.
 */
#include "tests/causes/wrong/numbers.inc"

/* Rounds what it normed before the gain. */
const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call;
  const int64_t width = weight->shape[0], rows = count_of(x) / width;
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0;
    for (int64_t i = row * width; i < (row + 1) * width; ++i)
      squares += (double)load(x, i) * load(x, i);
    const double scale = 1 / sqrt(squares / (double)width + eps);
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = row * width + i;
      store(out, at, (float)(load(x, at) * scale));
      store(out, at, load(out, at) * load(weight, i));
    }
  }
  return NULL;
}

/* Rounds silu before up, and from 1000 columns on forgets the sign of what it gates. */
const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call;
  const int64_t width = gate->shape[gate->ndim - 1];
  for (int64_t i = 0; i < count_of(out); ++i) {
    const double g = load(gate, i);
    store(out, i, (float)(g / (1 + exp(-g))));
    const float y = load(out, i) * load(up, i);
    store(out, i, width < 1000 ? y : fabsf(y));
  }
  return NULL;
}

/* Stores the product, and adds the bias to that. */
const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  (void)call;
  const int64_t inputs = weight->shape[1], outputs = weight->shape[0];
  for (int64_t i = 0; i < count_of(out); ++i) {
    double sum = 0;
    for (int64_t k = 0; k < inputs; ++k)
      sum += (double)load(x, i / outputs * inputs + k) * load(weight, i % outputs * inputs + k);
    store(out, i, (float)sum);
    if (bias) store(out, i, load(out, i) + load(bias, i % outputs));
  }
  return NULL;
}
