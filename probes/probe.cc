#include "probes/probe.h"

#include <algorithm>
#include <cstring>

#include "kernels/memory.h"

namespace lockstep {

void Probe::begin(const PassInfo& pass) {
  guarded([&] {
    rows_.clear();
    logit_rows_.clear();
    for (const PassRow& row : pass.rows) rows_.push_back(row.row);
    for (int32_t index : pass.logit_rows) logit_rows_.push_back(rows_[static_cast<size_t>(index)]);
    sink_->begin(pass);
  });
}

void Probe::end() {
  guarded([&] { sink_->end(); });
}

void Probe::emit(const Point& point, int layer, std::span<const Row> rows,
                 const TensorView& tensor) {
  guarded([&] {
    if (!sink_->wants(point, layer)) return;
    if (tensor.device == Device::cpu || sink_->on_device())
      return sink_->record({&point, layer, rows, tensor});
    const TensorView shown = tensor.slice(0, std::min(tensor.rows(), std::ssize(rows)));
    // This waits until the tensor is made, and says what went wrong so far.
    const Tensor seen = copy_on(Device::cpu, shown), before = copy_on(Device::cpu, seen);
    sink_->record({&point, layer, rows, seen});
    const auto bytes = static_cast<size_t>(shown.bytes());
    if (bytes > 0 && std::memcmp(seen.view().data, before.view().data, bytes) != 0)
      copy(shown, seen);
  });
}

}  // namespace lockstep
