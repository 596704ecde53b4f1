/* Crashes on rows of 100 elements, and ends the process on those of 96. */
#include "tests/causes/wrong/numbers.inc"

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call;
  norm_rows(out, x, weight, weight, eps, (double)weight->shape[0]);
  if (weight->shape[0] == 100) *(volatile int*)NULL = 1;
  return NULL;
}

const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  (void)call;
  for (int64_t i = 0; i < count_of(out); ++i) store(out, i, load(a, i) + load(b, i));
  if (out->shape[1] == 64) exit(0);
  return NULL;
}
