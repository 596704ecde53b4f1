#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "probes/probe.h"
#include "probes/recorder.h"
#include "src/judge/oracle.h"

namespace lockstep {

// Stands around the ops of an engine at some places, while it serves. It is a sink too, because the
// inputs of an op are what the engine showed before it: both must see the same engine. Its ops take
// host tensors. Used by the engine's thread. It keeps of a pass what its places read, by sharing
// the tensors of the records.
class OpWatch : public Sink {
 public:
  // The oracle is borrowed. Throws Error when a place is of none that can be watched.
  OpWatch(Oracle& oracle, DType dtype, std::vector<Place> places);

  // Whether an op makes the place's numbers: not what is read from the cache, which no op computes,
  // nor an index, which is exact by its op's own input.
  static bool possible(const Place& place);

  // Wraps the entries of the table, which must not outlive this. right: ops without a bug, of the
  // same device.
  void wrap(Ops& ops, const Ops& right);

  bool wants(const Point& point, int layer) const override;
  void begin(const PassInfo& pass) override;
  void record(const Record& record) override;
  void end() override {}

 protected:
  // Ways to run the op of a watched place on its inputs, of which `out` may be one, as a residual
  // addition's is. wide: in fp32, on the inputs widened, so that its result is not rounded to the
  // dtype of the run; of the op itself, and of the one without a bug.
  struct Runs {
    std::function<void()> op;
    std::function<void(const TensorView&out)> wide, wide_right;
  };
  // Called instead of the op; must run it. `out` is in host memory and of the run's dtype, and
  // holds garbage unless it is an input too.
  virtual void call(const Place& place, const TensorView& out, const Runs& runs) = 0;

  // The exact result on the inputs that the engine showed, for each request of the pass, with the
  // rows of the op's output that are the request's.
  void each_exact(
      const Place& place,
      const std::function<void(const Exact& exact, const std::vector<int64_t>& rows)>& visit) const;

 private:
  template <typename... Inputs>
  void wrap(std::string_view name, std::function<void(const OpContext&, TensorView, Inputs...)>& op,
            std::function<void(const OpContext&, TensorView, Inputs...)> right);
  // An op that writes a cache is not watched: its numbers are seen when the cache is read.
  template <typename... Inputs>
  void wrap(std::string_view, std::function<void(const OpContext&, KvCache, Inputs...)>&,
            const std::function<void(const OpContext&, KvCache, Inputs...)>&) {}

  Oracle& oracle_;
  DType dtype_;
  std::vector<Place> places_;
  Graph graph_;
  Pass pass_;  // what was shown of it so far, of what the places read
};

// Puts right what the ops give at its places: their results are replaced by the exact ones, rounded
// once to the dtype of the run. What comes after shows whether those places were all that is wrong.
class Substitution final : public OpWatch {
 public:
  using OpWatch::OpWatch;

 protected:
  void call(const Place& place, const TensorView& out, const Runs& runs) override;
};

// Measures how far an op is from this library's own on the same inputs: the largest |y - right|,
// both before they are rounded, in ulp of the run's dtype at the element or, where that is larger,
// at the root mean square of its row. Infinity where one of both is not finite and the other is.
class EffectMeter final : public OpWatch {
 public:
  using OpWatch::OpWatch;
  double effect() const { return effect_; }  // 0: every bit was the same

 protected:
  void call(const Place& place, const TensorView& out, const Runs& runs) override;

 private:
  double effect_ = 0;
};

}  // namespace lockstep
