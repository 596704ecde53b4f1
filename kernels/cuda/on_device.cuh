// The seam between a table of ops and the twins: a call is made on the device of its tensors.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/decode_step.h"
#include "kernels/fused.h"
#include "kernels/paged_attention.h"

namespace lockstep {

// The CUDA device that the arguments of one call lie on. It throws Error when they lie on two; a
// tensor of the host is left to the op's own checks.
class CallDevice {
 public:
  void operator()(const TensorView& tensor) {
    if (tensor.empty() || tensor.device.kind != DeviceKind::cuda) return;
    check(index_ < 0 || index_ == tensor.device.index,
          "the tensors of one op lie on the CUDA devices {} and {}: copy them to one", index_,
          tensor.device.index);
    index_ = tensor.device.index;
  }
  void operator()(const WeightView& weight) { (*this)(weight.codes), (*this)(weight.scales); }
  void operator()(const KvCache& cache) { (*this)(cache.k), (*this)(cache.v); }
  void operator()(const AttentionBatch& batch) {
    (*this)(batch.query_start), (*this)(batch.context_length), (*this)(batch.page_table);
  }
  void operator()(const std::vector<TensorView>& all) {
    for (const TensorView& one : all) (*this)(one);
  }
  void operator()(std::span<const Linear> all) {
    for (const Linear& one : all) (*this)(one.out), (*this)(one.weight), (*this)(one.bias);
  }
  void operator()(const AddNormInput* input) {
    if (input != nullptr) (*this)(*input);
  }
  void operator()(const AddNormInput& input) {
    (*this)(input.sum), (*this)(input.a), (*this)(input.b), (*this)(input.weight);
  }
  void operator()(const QkNormRopeKvWrite& a) { (*this)(a.q), (*this)(a.q_rope), (*this)(a.cache); }
  void operator()(const DecodeStep& step) { (*this)(step.workspace); }
  void operator()(float) {}
  void operator()(int64_t) {}
  void operator()(bool) {}

  // Makes it the current one of this thread. A call without a tensor of a device changes nothing.
  void use() const {
    if (index_ >= 0) use_device(index_);
  }

 private:
  int index_ = -1;
};

// A twin as a table of ops holds it: a plain function of the same signature.
template <auto kTwin>
struct OnDevice;
template <typename... Arguments, void (*kTwin)(const OpContext&, Arguments...)>
struct OnDevice<kTwin> {
  static void call(const OpContext& context, Arguments... arguments) {
    CallDevice device;
    (device(arguments), ...);
    device.use();
    kTwin(context, arguments...);
  }
};

}  // namespace lockstep
