// One op of a model again, as its engine calls it, on inputs that somebody kept.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "src/model/model.h"
#include "src/replay/captured_call.h"
#include "src/replay/op_inputs.h"

namespace lockstep {

// A table of ops on one device, and what people call it.
struct Implementation {
  std::string name;
  Ops ops;
};

// Runs the op of one place in the model that it belongs to, with its weights and settings as the
// engine passes them. No other op of the model is computed: those that it reads hand on what was
// kept of them. One thread at a time may use it, and one run at a time: the stand-ins read what
// run() is given.
class OpRunner {
 public:
  struct Options {
    DType dtype = DType::bf16;
    Device device = Device::cpu;
    int threads = 0;  // 0: one a core
    // A fused op, by the name of its row in kFusedOps, that every implementation has: it is run in
    // the place of its pieces, at the place that it names in its calls. "": the op of the place.
    std::string_view fused;
    std::vector<Place> shown;  // that Made has; empty: the runner's place
  };

  // The checkpoint must outlive it. The first implementation is this library's own: it gathers the
  // rows that get logits.
  OpRunner(const Checkpoint& checkpoint, const Place& place,
           std::vector<Implementation> implementations, const Options& options);
  OpRunner(const OpRunner&) = delete;
  OpRunner& operator=(const OpRunner&) = delete;

  // The result of one of them: the tensors of its places, of a cache one a request.
  struct Made {
    std::vector<RecordedTensor> tensors;
    double seconds = 0;  // of the op alone, the least of some calls
  };
  // The inputs must lack nothing. Throws Error when the op fails, or its model has another shape.
  // Tensors of the result are on the host. The rows are those of the inputs; `timed` calls the op
  // up to 20 times before the call that counts.
  Made run(size_t which, const OpInputs& inputs, bool timed = true);
  // Which numbers of pages, slots or positions the op is given other than those of the run, in a
  // sentence's words; empty: it has the run's. A bug that hangs on such a number may not show then.
  std::string unlike_run(const OpInputs& inputs);
  // The arguments of the op's call on those inputs; of a cache's, the call that writes it. It is
  // computed by the first implementation, whose result is thrown away.
  CapturedCall call_on(const OpInputs& inputs);

 private:
  template <typename Out, typename... In>
  void stand_in(Ops& ops, const OpRow<void(const OpContext&, Out, In...)>& row);
  void compute(const TensorView& out, const std::function<void(const TensorView& out)>& op);
  void compute(const KvCache& cache, const std::function<void(const KvCache& cache)>& op);
  void stand_in_fused(FusedOps& fused);
  void run_fused(const OpContext& context, const TensorView& out, const AddNormInput& in);
  void run_fused(const OpContext& context, std::span<const Linear> all, const TensorView& x);
  void run_fused(const OpContext& context, const QkNormRopeKvWrite& a);
  void run_fused(const OpContext& context, const TensorView& out, const TensorView& x,
                 const WeightView& gate, const WeightView& up);
  void capture(const FusedRow& row, const OpContext& context,
               const std::function<void(CallCapture&)>& take);
  const FusedOps& fused() const { return implementations_[which_].ops.fused; }
  void time(const std::function<void()>& op);
  bool is_place(const OpContext& context) const;
  void supply(const OpContext& context, const TensorView& out) const;
  void supply(const OpContext&, const KvCache&) const {}
  Batch batch_of(const OpInputs& inputs);
  std::vector<KvCache> caches_of(const OpInputs& inputs, std::vector<Tensor>& storage) const;

  Place place_;
  std::vector<Implementation> implementations_;
  Options options_;
  int layers_;
  ThreadPool threads_;
  RopeCache rope_;
  Tensor cos_, sin_;  // tables of the pass that is computed
  std::unique_ptr<Model> model_;
  size_t which_ = 0;
  const OpInputs* inputs_ = nullptr;  // of the pass that is computed
  bool timed_ = true;
  double seconds_ = 0;
  std::optional<CapturedCall>* captured_ = nullptr;  // where the next call goes
};

}  // namespace lockstep
