/* Ops that are wrong, and one that is right, though a plain loop. */
#include "tests/causes/wrong/numbers.inc"

/* Holds what overflows at the largest number, and hands on NaN. */
const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  (void)call;
  const float largest = out->dtype.bits == 32          ? 3.40282347e38f
                        : out->dtype.code == kDLBfloat ? 3.38953139e38f
                                                       : 65504.0f;
  for (int64_t i = 0; i < count_of(out); ++i) {
    const float sum = load(a, i) + load(b, i);
    store(out, i, isnan(sum) ? sum : fmaxf(-largest, fminf(largest, sum)));
  }
  return NULL;
}

/* The same of a product. */
const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  (void)call;
  const int is_half = out->dtype.bits == 16 && out->dtype.code != kDLBfloat;
  multiply(out, x, weight, bias, NULL, weight->shape[1]);
  for (int64_t i = 0; is_half && i < count_of(out); ++i)
    store(out, i, fmaxf(-65504.0f, fminf(65504.0f, load(out, i))));
  return NULL;
}

/* Adds squares in fp32, one after the other: right, though of 5120 numbers in bf16 it is off by 100
 * roundings of fp32. */
const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call;
  const int64_t width = weight->shape[0], rows = count_of(x) / width;
  for (int64_t row = 0; row < rows; ++row) {
    float squares = 0;
    for (int64_t i = row * width; i < (row + 1) * width; ++i) squares += load(x, i) * load(x, i);
    const float scale = 1 / sqrtf(squares / (float)width + eps);
    for (int64_t i = 0; i < width; ++i)
      store(out, row * width + i, load(x, row * width + i) * scale * load(weight, i));
  }
  return NULL;
}

/* Holds its output at the largest number of fp16. */
const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call;
  for (int64_t i = 0; i < count_of(out); ++i) {
    const float g = load(gate, i), y = g / (1 + expf(-g)) * load(up, i);
    store(out, i, fmaxf(-65504.0f, fminf(65504.0f, y)));
  }
  return NULL;
}

/* Takes the last of equal ones, where the first is promised. */
const char* lockstep_argmax(const LockstepCall* call, const DLTensor* out, const DLTensor* logits) {
  (void)call;
  const int64_t rows = logits->shape[0], vocab = logits->shape[1];
  for (int64_t row = 0; row < rows; ++row) {
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; ++i)
      if (load(logits, row * vocab + i) >= load(logits, row * vocab + best)) best = i;
    ((int32_t*)out->data)[row] = (int32_t)best;
  }
  return NULL;
}
