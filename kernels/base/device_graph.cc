#include "kernels/base/device_graph.h"

#include "kernels/base/memory.h"

namespace lockstep {

DeviceGraph::DeviceGraph(const std::function<void()>& queue) {
  const DeviceMemory& device = cuda_memory();
  device.begin_graph(device.stream);
  try {
    queue();
  } catch (...) {
    device.end_graph(device.stream, false);
    throw;
  }
  graph_ = {device.end_graph(device.stream, true), device.forget};
}

void DeviceGraph::replay() const { cuda_memory().replay(graph_.get(), cuda_memory().stream); }

}  // namespace lockstep
