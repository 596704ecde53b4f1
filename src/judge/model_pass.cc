// Tensors are copied as they are shown, since a model's are gone after the call, and freed place by
// place: a layer of a long prompt in fp64 takes gigabytes.
#include "src/judge/model_pass.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep {

ModelPass::ModelPass(ReferenceModel& model, const PassInfo& info, Only::Wanted wanted,
                     std::function<void(int layer)> says)
    : model_(model),
      wanted_(std::move(wanted)),
      pass_{.info = info},
      watched_(*this,
               [says = std::move(says)](int32_t, int64_t, int layer) {
                 if (says) says(layer);
               }),
      probe_(&watched_) {
  model_.begin(pass_.info, probe_);
  check_probe();
}

void ModelPass::advance(int through) {
  model_.advance(through);
  check_probe();
}

void ModelPass::check_probe() const { check(probe_.failure().empty(), "{}", probe_.failure()); }

void ModelPass::record(const Record& record) {
  const TensorView& shown = record.tensor;
  Tensor data(shown.shape, shown.dtype);
  if (shown.bytes() > 0) std::memcpy(data.as<char>(), shown.data, shown.bytes());
  pass_.tensors.push_back({.point = record.point,
                           .layer = record.layer,
                           .rows = {record.rows.begin(), record.rows.end()},
                           .dtype = shown.dtype,
                           .shape = shown.shape,
                           .data = std::move(data)});
}

void ModelPass::drop(const Place& place) {
  std::erase_if(pass_.tensors, [&](const RecordedTensor& tensor) {
    return tensor.layer == place.layer && *tensor.point == *place.point;
  });
}

}  // namespace lockstep
