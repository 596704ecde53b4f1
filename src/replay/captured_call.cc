// Arguments are named as lockstep_ops.h names them, since a repro calls that interface; one that
// the table of ops has no name for is "inputN".
#include "src/replay/captured_call.h"

#include <fmt/format.h>

namespace lockstep {

CallCapture::CallCapture(std::string_view function, std::span<const std::string_view> inputs,
                         const OpContext& context)
    : call_{.function = std::string(function),
            .point = std::string(context.point),
            .layer = context.layer},
      names_(inputs) {}

// A tensor that is not given stays in the list without data, so that arguments keep their places.
CapturedCall::Operand& CallCapture::put(std::vector<CapturedCall::Operand>& to, std::string name,
                                        const TensorView& tensor) {
  CapturedCall::Operand& kept = to.emplace_back(CapturedCall::Operand{std::move(name), {}});
  if (!tensor.empty()) kept.data = copy_on(Device::cpu, tensor);
  return kept;
}

void CallCapture::add(Type type, std::initializer_list<TensorView> tensors) {
  call_.arguments.push_back({type, call_.inputs.size(), tensors.size()});
  for (const TensorView& tensor : tensors) put(call_.inputs, next_name(), tensor);
}

std::string CallCapture::next_name() {
  const bool named = next_ < names_.size() && !names_[next_].empty();
  return named ? std::string(names_[next_++]) : fmt::format("input{}", next_++);
}

void CallCapture::add_output(const KvCache& cache) {
  put(call_.outputs, "cache.k", cache.k);
  put(call_.outputs, "cache.v", cache.v);
}

void CallCapture::add(const TensorView& tensor) { add(Type::tensor, {tensor}); }

void CallCapture::add(const WeightView& weight) {
  add(weight.codes);
  call_.inputs.back().is_weight = true;
}

void CallCapture::add(const KvCache& cache) { add(Type::cache, {cache.k, cache.v}); }

void CallCapture::add(const AttentionBatch& batch) {
  add(Type::batch, {batch.query_start, batch.context_length, batch.page_table});
}

void CallCapture::add(Type type, const std::vector<TensorView>& tensors, bool are_weights) {
  call_.arguments.push_back({type, call_.inputs.size(), tensors.size()});
  const std::string name = next_name();
  for (size_t i = 0; i < tensors.size(); ++i)
    put(call_.inputs, fmt::format("{}.{}", name, i), tensors[i]).is_weight = are_weights;
}

void CallCapture::add(const std::vector<TensorView>& weights) { add(Type::counted, weights, true); }

void CallCapture::add_weights(const std::vector<TensorView>& weights) {
  add(Type::list, weights, true);
}

void CallCapture::add_list(const std::vector<TensorView>& tensors) {
  add(Type::list, tensors, false);
}

}  // namespace lockstep
