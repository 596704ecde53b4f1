/* The branch is added twice, as where an all-reduce over one rank runs again. */
#include "numbers.inc"

const char* lockstep_add(const LockstepCall* call, const DLTensor* out, const DLTensor* a,
                         const DLTensor* b) {
  const float times = is_at(call, "mlp.residual") ? 2 : 1;
  for (int64_t i = 0; i < count_of(a); ++i) store(out, i, load(a, i) + times * load(b, i));
  return NULL;
}
