// Ops that take host memory, in a table for a device: tensors are copied to the host, the op is
// called, and what it wrote is copied back. Faults and users' libraries for the CPU run so beside a
// CUDA engine.
#include "kernels/plugin/host_staging.h"

#include <deque>
#include <tuple>

#include "kernels/base/memory.h"

namespace lockstep {
namespace {

// The staged arguments of one call: every tensor is a copy on a device. It owns the copies.
class HostStaging {
 public:
  explicit HostStaging(Device to) : to_(to) {}

  TensorView operator()(const TensorView& from) {
    if (from.empty()) return from;  // a bias that is none
    return copies_.emplace_back(copy_on(to_, from));
  }
  WeightView operator()(const WeightView& weight) {
    WeightView staged = weight;
    staged.codes = (*this)(weight.codes), staged.scales = (*this)(weight.scales);
    return staged;
  }
  KvCache operator()(const KvCache& cache) { return {(*this)(cache.k), (*this)(cache.v)}; }
  AttentionBatch operator()(const AttentionBatch& batch) {
    return {(*this)(batch.query_start), (*this)(batch.context_length), (*this)(batch.page_table)};
  }
  std::vector<TensorView> operator()(const std::vector<TensorView>& all) {
    std::vector<TensorView> there;
    for (const TensorView& one : all) there.push_back((*this)(one));
    return there;
  }
  template <typename Other>
  Other operator()(const Other& other) {
    return other;
  }

 private:
  Device to_;
  std::deque<Tensor> copies_;
};

void copy_back(const TensorView& to, const TensorView& from) { copy(to, from); }
void copy_back(const KvCache& to, const KvCache& from) {
  copy(to.k, from.k);
  copy(to.v, from.v);
}

// The table's function is wrapped; the one before lives in the wrapper.
template <typename Out, typename... In>
void stage(std::function<void(const OpContext&, Out, In...)>& op, Device to) {
  op = [op, to](const OpContext& context, Out out, In... in) {
    HostStaging staging(to);
    // An op may leave elements of its output as they were, so the output is staged too.
    const Out staged_out = staging(out);
    // Braces evaluate from left to right, so that runs allocate alike.
    std::tuple<std::decay_t<In>...> inputs{staging(in)...};
    std::apply([&](const auto&... staged_in) { op(context, staged_out, staged_in...); }, inputs);
    copy_back(out, staged_out);
  };
}

}  // namespace

Ops staged_on(const Ops& ops, Device to) {
  Ops all = ops;
  all.fused = {};  // whose pieces are staged
  for_each_op([&](const auto& row) { stage(all.*row.entry, to); });
  return all;
}

}  // namespace lockstep
