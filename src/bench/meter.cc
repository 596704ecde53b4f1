// Entries of the table are wrapped once; each keeps its output, so that the next pass can fill it
// with NaN first, and products and attention have their time taken. The meter's own work is counted
// apart and taken off.
#include "src/bench/meter.h"

#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

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

template <typename T, typename... Arguments>
constexpr bool kHas = (std::is_same_v<T, std::decay_t<Arguments>> || ...);

// Where the time in an op is counted, by what it takes: products take weights, attention a batch;
// null: nowhere.
template <typename... Inputs>
constexpr double PassMeter::Pass::*seconds_in() {
  if (kHas<WeightView, Inputs...> || kHas<std::vector<TensorView>, Inputs...>)
    return &PassMeter::Pass::matmul;
  return kHas<AttentionBatch, Inputs...> ? &PassMeter::Pass::attention : nullptr;
}

}  // namespace

PassMeter::PassMeter(Ops ops) : inner_(std::move(ops)) {}

Ops PassMeter::ops() {
  Ops watched = inner_;
  for_each_op([&](const auto& row) {
    wrap(watched.*row.entry,
         [this](const auto& op, const OpContext& context, const auto& out, const auto&... inputs) {
           keep(out);
           constexpr auto seconds = seconds_in<decltype(inputs)...>();
           if (seconds == nullptr) return op(context, out, inputs...);
           const Clock clock(pass_.*seconds);
           op(context, out, inputs...);
         });
  });
  // It gathers for a probe, whose memory may be gone by the next pass.
  watched.kv_gather = inner_.kv_gather;
  wrap(watched.argmax, [this](const auto& op, const OpContext& context, const TensorView& out,
                              const TensorView& logits) {
    see_logits(logits);
    op(context, out, logits);
  });
  return watched;
}

void PassMeter::before_pass() {
  pass_ = {};
  const Clock clock(pass_.checking);
  // All bits set is a NaN in every float dtype, and no token. An op that does nothing then leaves
  // NaN, which the logits show.
  for (const auto& [data, output] : outputs_) std::memset(data, 0xff, output.bytes());
  outputs_.clear();  // the next pass may need longer ones
}

void PassMeter::see_logits(const TensorView& logits) {
  const Clock clock(pass_.checking);
  const Digest digest = digest_of(logits);
  pass_.logits = digest.hash;
  pass_.finite = digest.finite() == digest.count;
}

}  // namespace lockstep
