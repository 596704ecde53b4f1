/* The norm of query head 2 leaves its last 8 squares out, as of a warp whose last lane is idle. */
#include "numbers.inc"

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  const int64_t width = weight->shape[0], rows = count_of(x) / width;
  const int64_t heads = x->ndim == 3 ? x->shape[1] : 1;
  for (int64_t r = 0; r < rows; ++r) {
    const int is_short = is_at(call, "attn.q_norm") && r % heads == 2;
    double sum = 0;
    for (int64_t i = 0; i < (is_short ? width - 8 : width); ++i)
      sum += (double)load(x, r * width + i) * load(x, r * width + i);
    const double root = sqrt(sum / (double)width + eps);
    for (int64_t i = 0; i < width; ++i)
      store(out, r * width + i, (float)(load(x, r * width + i) / root * load(weight, i)));
  }
  return NULL;
}
