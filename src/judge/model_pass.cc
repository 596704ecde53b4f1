// Tensors are copied as they are shown, since a model's are gone after the call, and freed place by
// place: a layer of a long prompt in fp64 takes gigabytes, which one thread alone copies more
// slowly than a device computes them.
#include "src/judge/model_pass.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr int64_t kPiece = 1 << 20;      // bytes that are worth a thread
constexpr int64_t kShared = kPiece * 4;  // and that are worth waking some

}  // namespace

ModelPass::ModelPass(ReferenceModel& model, const PassInfo& info, Only::Wanted wanted,
                     std::function<void(int layer)> says, int threads)
    : model_(model),
      wanted_(std::move(wanted)),
      most_threads_(threads > 0 ? threads : machine_threads()),
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

void ModelPass::copy_shown(const TensorView& to, const TensorView& from) {
  const int64_t bytes = from.bytes();
  if (bytes >= kShared && !threads_) threads_ = std::make_unique<ThreadPool>(most_threads_);
  parallel_for(bytes < kShared ? nullptr : threads_.get(), (bytes + kPiece - 1) / kPiece, 1,
               [&](int64_t begin, int64_t end) {
                 const int64_t first = begin * kPiece, size = std::min(bytes, end * kPiece) - first;
                 if (size > 0)
                   std::memcpy(to.as<char>() + first, from.as<const char>() + first, size);
               });
}

void ModelPass::record(const Record& record) {
  const TensorView& shown = record.tensor;
  Tensor data(shown.shape, shown.dtype);
  copy_shown(data, shown);
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
