/* Rounds what it normed before the gain, as transformers does: right where that is declared. */
#include "tests/causes/wrong/numbers.inc"

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
