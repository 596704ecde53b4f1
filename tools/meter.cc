#include "tools/meter.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "probes/digest.h"

namespace lockstep {
namespace {

// Adds the seconds of its life to a sum.
class Clock {
 public:
  explicit Clock(double& sum) : sum_(sum) {}
  ~Clock() {
    sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

 private:
  double& sum_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

PassMeter::PassMeter(Ops ops) : inner_(std::move(ops)) {}

Ops PassMeter::ops() {
  Ops watched = inner_;
  const auto watch = [this](auto& op, double Pass::*seconds) {
    op = [this, seconds, inner = op](const OpContext& context, TensorView out, auto... inputs) {
      outputs_[out.data] = out;
      if (seconds == nullptr) return inner(context, out, inputs...);
      const Clock clock(pass_.*seconds);
      inner(context, out, inputs...);
    };
  };
  watch(watched.gather_rows, nullptr);
  watch(watched.rms_norm, nullptr);
  watch(watched.matmul, &Pass::matmul);
  watch(watched.rope, nullptr);
  watch(watched.paged_attention, &Pass::attention);
  watch(watched.silu_mul, nullptr);
  watch(watched.add, nullptr);
  watched.argmax = [this](const OpContext& context, TensorView out, TensorView logits) {
    outputs_[out.data] = out;
    see_logits(logits);
    inner_.argmax(context, out, logits);
  };
  return watched;
}

void PassMeter::before_pass() {
  pass_ = {};
  const Clock clock(pass_.checking);
  // All bits set is a NaN in every float dtype, and no token.
  for (const auto& [data, output] : outputs_)
    std::memset(data, 0xff, static_cast<size_t>(output.bytes()));
  outputs_.clear();  // the next pass may need longer ones
}

void PassMeter::see_logits(const TensorView& logits) {
  const Clock clock(pass_.checking);
  const Digest digest = digest_of(logits);
  pass_.logits = digest.hash;
  pass_.finite = digest.finite() == digest.count;
}

}  // namespace lockstep
