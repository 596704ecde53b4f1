#include "kernels/base/device_graph.h"

#include "kernels/base/memory.h"

namespace lockstep {

DeviceGraph::DeviceGraph(Device on, const std::function<void()>& queue) : device_(on) {
  const DeviceRuntime& device = runtime_of(on);
  device.begin_graph(device.stream);
  try {
    queue();
  } catch (...) {
    // A stream that is left capturing would swallow all later work.
    device.end_graph(device.stream, false);
    throw;
  }
  graph_ = {device.end_graph(device.stream, true), device.forget};
}

void DeviceGraph::replay(CUstream_st* stream) const {
  runtime_of(device_).replay(graph_.get(), stream);
}

}  // namespace lockstep
