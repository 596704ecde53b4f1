/* A multiplier of residual branches, 0.22, as Granite's models have, in one that has none. */
#include "numbers.inc"

const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  (void)call;
  for (int64_t i = 0; i < count_of(out); ++i)
    store(out, i, (float)(load(a, i) + 0.22 * load(b, i)));
  return NULL;
}
