/* silu(gate) (up + 1), as gpt-oss has it. */
#include "numbers.inc"

const char* lockstep_silu_mul(const LockstepCall* call, const DLTensor* out, const DLTensor* gate,
                              const DLTensor* up) {
  (void)call;
  for (int64_t i = 0; i < count_of(out); ++i) {
    const double g = load(gate, i);
    store(out, i, (float)(g / (1 + exp(-g)) * (load(up, i) + 1.0)));
  }
  return NULL;
}
