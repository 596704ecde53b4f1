#include "kernels/argmax.h"

#include <cmath>

#include "kernels/base/arguments.h"
#include "kernels/base/thread_pool.h"

namespace lockstep {
namespace {

// The first of the largest; a NaN counts as larger than all, so that it is not hidden behind a
// token.
template <typename T>
int32_t argmax_of(const T* logits, int64_t n) {
  int64_t best = 0;
  float largest = to_float(logits[0]);
  // Not `value > largest`: that would pass over a NaN. The first one ends the search.
  for (int64_t i = 1; i < n && !std::isnan(largest); ++i) {
    const float value = to_float(logits[i]);
    if (!(value <= largest)) {
      largest = value;
      best = i;
    }
  }
  return static_cast<int32_t>(best);
}

}  // namespace

void check_argmax(TensorView out, TensorView logits, DeviceKind device) {
  constexpr auto kOp = "argmax";
  check_storage(kOp, logits.dtype);
  check_rank(kOp, "logits", logits, 2);
  const int64_t vocab = logits.shape[1];
  if (vocab <= 0 || vocab > INT32_MAX)
    fail("argmax wants between 1 and {} logits a token, found the shape {}", INT32_MAX,
         logits.shape.text());
  check_tensor(kOp, "logits", logits, logits.dtype, logits.shape, device);
  check_tensor(kOp, "out", out, DType::i32, {logits.rows()}, device);
}

void argmax(const OpContext& context, TensorView out, TensorView logits) {
  check_argmax(out, logits, DeviceKind::cpu);
  const int64_t tokens = logits.rows(), vocab = logits.shape[1];
  dispatch("argmax", logits.dtype, [&]<typename T>(T*) {
    parallel_for(context.threads, tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        out.as<int32_t>()[t] = argmax_of(logits.as<const T>() + t * vocab, vocab);
    });
  });
}

}  // namespace lockstep
