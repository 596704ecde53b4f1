/* An op that is right, though near a border of rounding it takes the other side. */
#include "tests/causes/wrong/numbers.inc"

/* In fp32 by the exponential that a device has, to the base 2, and the product first. */
const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call;
  for (int64_t i = 0; i < count_of(out); ++i) {
    const float g = load(gate, i);
    store(out, i, g * load(up, i) / (1 + exp2f(-g * 1.4426950408889634f)));
  }
  return NULL;
}
