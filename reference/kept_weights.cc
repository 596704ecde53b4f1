// A stream of its own copies beforehand. A weight is given to others when it is there, whatever
// stream they read it by.
#include "reference/kept_weights.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>
#include <utility>

#include "reference/bridge.h"

namespace lockstep {
namespace {

constexpr std::string_view kLayers = "model.layers.";

// -1: of what comes before the layers.
int64_t layer_of(const std::string& name) {
  int64_t layer = -1;
  if (name.starts_with(kLayers))
    std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

std::shared_ptr<KeptWeights> KeptWeights::of(const Checkpoint& checkpoint, DType dtype, int gpu) {
  static std::mutex mutex;
  static std::map<std::tuple<const Checkpoint*, DType, int>, std::weak_ptr<KeptWeights>> all;
  const std::lock_guard lock(mutex);
  std::weak_ptr<KeptWeights>& known = all[{&checkpoint, dtype, gpu}];
  std::shared_ptr<KeptWeights> kept = known.lock();
  if (!kept) known = kept = std::make_shared<KeptWeights>(checkpoint, dtype, gpu);
  return kept;
}

KeptWeights::KeptWeights(const Checkpoint& checkpoint, DType dtype, int gpu)
    : checkpoint_(checkpoint),
      dtype_(dtype),
      gpu_(gpu),
      beside_(device()),
      thread_([this](const std::stop_token& stop) { serve(stop); }) {}

at::Device KeptWeights::device() const { return {at::kCUDA, static_cast<int8_t>(gpu_)}; }

at::Tensor KeptWeights::copy_of(const std::string& name) const {
  return as_dtype(to_torch(checkpoint_.tensor(name), device()), dtype_);
}

at::Tensor KeptWeights::tensor(const std::string& name) {
  std::unique_lock lock(mutex_);
  expect_after(name);
  changed_.wait(lock, [&] { return !coming_.contains(name); });
  if (const auto known = kept_.find(name); known != kept_.end()) return *known->second;
  coming_.insert(name);
  lock.unlock();
  at::Tensor made;
  std::exception_ptr trouble;
  try {
    made = copy_of(name);
    wait_for_queued(device());
  } catch (...) {
    trouble = std::current_exception();
  }
  lock.lock();
  coming_.erase(name);
  changed_.notify_all();
  // A copy for which the device has no room leaves nothing behind.
  if (trouble) std::rethrow_exception(trouble);
  kept_.emplace(name, std::make_shared<const at::Tensor>(made));
  return made;
}

// Layers that nobody asks for are not copied: a run may judge a few of them.
void KeptWeights::expect_after(const std::string& name) {
  const int64_t next = layer_of(name) + 1;
  if (next <= expected_) return;
  through_ = std::max(through_, next - 1);
  expected_ = next;
  changed_.notify_all();
}

std::vector<std::string> KeptWeights::names_of(int64_t layer) const {
  const ModelConfig& config = checkpoint_.config();
  if (layer >= config.layers)
    return config.tied ? std::vector<std::string>{} : std::vector<std::string>{"lm_head.weight"};
  std::vector<std::string> names = checkpoint_.names();
  std::erase_if(names, [&](const std::string& name) {
    return layer_of(name) != layer || name.find(".experts.") != name.npos;
  });
  return names;
}

// Undefined where there is no room: whoever needs the weight is told so.
at::Tensor KeptWeights::copied_apart(const std::string& name) const {
  at::Tensor made;
  try {
    at::Tensor copied;
    beside_.run([&] { copied = copy_of(name); });
    made = copied;
  } catch (const std::exception&) {
  }
  return made;
}

void KeptWeights::serve(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return through_ < expected_; })) {
    for (const std::string& name : names_of(++through_)) {
      if (stop.stop_requested()) return;
      if (kept_.contains(name) || !coming_.insert(name).second) continue;
      lock.unlock();
      const at::Tensor made = copied_apart(name);
      lock.lock();
      coming_.erase(name);
      if (made.defined()) kept_.emplace(name, std::make_shared<const at::Tensor>(made));
      changed_.notify_all();
    }
  }
}

}  // namespace lockstep
