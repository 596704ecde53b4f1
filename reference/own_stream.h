#pragma once

#include <functional>
#include <memory>

#include "reference/kernel_queue.h"

namespace at {
class Tensor;
}
namespace c10 {
class Stream;
struct Device;
}  // namespace c10

namespace lockstep {

// A stream on a CUDA device for one of those who compute there at the same time: no other stream
// waits for it, and a graph may be captured of any other meanwhile. On the CPU there is none, and
// whoever computes does so at once.
class OwnStream {
 public:
  // Another one may have it once this and its copies are gone.
  explicit OwnStream(const c10::Device& device);
  // The one of the thread that calls; none in a build without kernels of the reference, where all
  // queue on the device's own. Another thread has it when this one has ended, and finds the memory
  // that LibTorch keeps for it.
  static const OwnStream& of_this_thread(const c10::Device& device);

  // Calls `body` as in_torch() does, without gradients, and returns when all that it queued is
  // done, also where it throws, so that any stream may read it. What `body` reads must have been
  // done before, and nobody may free it, nor what the body made, while work of another stream that
  // reads it is queued.
  void run(const std::function<void()>& body) const;

 private:
  explicit OwnStream(const c10::Stream& stream);

  std::shared_ptr<const c10::Stream> stream_;  // null: there is none
};

// Calls `body` as in_torch() does: by the stream that this thread queues by where that is one of
// its own, as within run(), or else as OwnStream::of_this_thread(device).run().
void run_by_thread(const c10::Device& device, const std::function<void()>& body);
// Where this thread queues, for kernels of the reference: a stream of its own or the device's.
KernelQueue queue_of_this_thread(const c10::Device& device);
// Lets what this thread has queued read the tensor, whichever thread lets go of it and when.
void keep_for_queued(const at::Tensor& tensor);
// Returns when all is done that this thread queued on that device.
void wait_for_queued(const c10::Device& device);

}  // namespace lockstep
