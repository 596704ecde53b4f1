// Shows tensors to the sink, as long as that works. A probe never breaks its host: the first
// exception of a sink is kept as a sentence, and from then on nothing is shown.
#include "probes/probe.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "kernels/base/check.h"
#include "kernels/base/sentence.h"

namespace lockstep {
namespace {

// A lack of memory in the words of this project.
template <typename Call>
auto with_sentence(Call call) {
  return [call] {
    try {
      call();
    } catch (const std::bad_alloc& error) {
      throw Error(sentence_of(error));
    }
  };
}

}  // namespace

void Probe::begin(const PassInfo& pass) {
  guarded(with_sentence([&] {
    rows_.clear();
    logit_rows_.clear();
    for (const PassRow& row : pass.rows) rows_.push_back(row.row);
    for (int32_t index : pass.logit_rows) logit_rows_.push_back(rows_[index]);
    sink_->begin(pass);
  }));
}

void Probe::end() {
  guarded(with_sentence([&] { sink_->end(); }));
}

void Probe::emit(const Point& point, int layer, std::span<const Row> rows, const TensorView& tensor,
                 const std::optional<Shard>& shard) {
  guarded(with_sentence([&] {
    if (!sink_->wants(point, layer)) return;
    if (tensor.device == Device::cpu || sink_->on_device())
      return sink_->record({&point, layer, rows, tensor, shard});
    const TensorView shown = tensor.slice(0, std::min(tensor.rows(), std::ssize(rows)));
    if (host_.view().empty() || host_.view().bytes() < shown.bytes())
      host_ = Tensor::pinned({std::max<int64_t>(1, shown.bytes())}, DType::u8, tensor.device);
    const Tensor seen = host_.part(0, shown.shape, shown.dtype);
    copy(seen, shown);  // waits until the tensor is made, and says what went wrong so far
    if (!sink_->writes()) return sink_->record({&point, layer, rows, seen, shard, shown});
    // Only what a sink really changed is copied back.
    const Tensor before = copy_on(Device::cpu, seen);
    sink_->record({&point, layer, rows, seen, shard});
    const size_t bytes = shown.bytes();
    if (bytes == 0 || std::memcmp(seen.view().data, before.view().data, bytes) == 0) return;
    copy(shown, seen);
    wait_for(tensor.device);  // reads what the next tensor is copied to
  }));
}

}  // namespace lockstep
