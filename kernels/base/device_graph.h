#pragma once

#include <functional>
#include <memory>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// A captured CUDA graph: work that is queued once and replayed on the same memory, with what that
// holds then. A replay is far cheaper than queueing op by op. Owned by one engine; its thread
// replays.
class DeviceGraph {
 public:
  DeviceGraph() = default;
  // Keeps what `queue` queues on the device's stream; none of it is done. `queue` must not wait for
  // the device or touch host memory through it, and must have run once before, so that nothing is
  // made for the first time. Tensors that it allocates and frees stay the graph's own. Throws what
  // `queue` throws, and Error when the device cannot keep something of it.
  DeviceGraph(Device device, const std::function<void()>& queue);

  bool empty() const { return graph_ == nullptr; }
  void replay(CUstream_st* stream) const;  // queues all of it

 private:
  Device device_;
  // Copies share the graph, which the runtime forgets with the last of them.
  std::shared_ptr<void> graph_;
};

}  // namespace lockstep
