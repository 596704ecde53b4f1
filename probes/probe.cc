#include "probes/probe.h"

#include <exception>

namespace lockstep {

template <typename Call>
void Probe::guarded(Call call) {
  if (!sink_) return;
  try {
    call();
  } catch (const std::exception& error) {
    sink_ = nullptr;
    failure_ = error.what();
  }
}

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
    if (sink_->wants(point, layer)) sink_->record({&point, layer, rows, tensor});
  });
}

}  // namespace lockstep
