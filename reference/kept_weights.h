// Weights on a CUDA device, in the run's dtype. A weight is copied when it is first asked for, and
// those of the layer after its own are copied meanwhile: from the host they take about as long as
// what is computed with them.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "reference/own_stream.h"
#include "src/weights/checkpoint.h"

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}

namespace lockstep {

class KeptWeights {
 public:
  // Those of a checkpoint there, which all share who judge a run by them: they may fill half of a
  // device. Borrows the checkpoint.
  static std::shared_ptr<KeptWeights> of(const Checkpoint& checkpoint, DType dtype, int gpu);
  KeptWeights(const Checkpoint& checkpoint, DType dtype, int gpu);
  KeptWeights(const KeptWeights&) = delete;

  // Several threads may ask. Throws what LibTorch throws where the device has no room.
  at::Tensor tensor(const std::string& name);

 private:
  c10::Device device() const;
  at::Tensor copy_of(const std::string& name) const;
  at::Tensor copied_apart(const std::string& name) const;
  void expect_after(const std::string& name);
  void serve(const std::stop_token& stop);
  // The weights of a layer that every token is multiplied by; of the layer past the last one those
  // of the head, where it has its own.
  std::vector<std::string> names_of(int64_t layer) const;

  const Checkpoint& checkpoint_;
  const DType dtype_;
  const int gpu_;
  const OwnStream beside_;  // of the thread that copies beforehand
  std::mutex mutex_;        // guards all below
  std::condition_variable_any changed_;
  std::map<std::string, std::shared_ptr<const at::Tensor>> kept_;
  std::set<std::string> coming_;          // that a thread is copying
  int64_t through_ = -1, expected_ = -1;  // layers that were copied beforehand, and are to be
  std::jthread thread_;                   // ends before all above
};

}  // namespace lockstep
