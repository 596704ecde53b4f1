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
void CallCapture::put(std::vector<CapturedTensor>& to, std::string name, const TensorView& tensor) {
  CapturedTensor& kept = to.emplace_back(CapturedTensor{std::move(name), {}});
  if (!tensor.empty()) kept.data = copy_on(Device::cpu, tensor);
}

std::string CallCapture::next_name() {
  const bool named = next_ < names_.size() && !names_[next_].empty();
  return named ? std::string(names_[next_++]) : fmt::format("input{}", next_++);
}

void CallCapture::add_output(const KvCache& cache) {
  put(call_.outputs, "cache.k", cache.k);
  put(call_.outputs, "cache.v", cache.v);
}

void CallCapture::add(const KvCache& cache) {
  add(cache.k);
  add(cache.v);
}

void CallCapture::add(const AttentionBatch& batch) {
  add(batch.query_start);
  add(batch.context_length);
  add(batch.page_table);
}

void CallCapture::add(const std::vector<TensorView>& all) {
  const std::string name = next_name();
  for (size_t i = 0; i < all.size(); ++i) put(call_.inputs, fmt::format("{}.{}", name, i), all[i]);
}

}  // namespace lockstep
