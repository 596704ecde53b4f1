#pragma once

#include <functional>
#include <memory>

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
  explicit OwnStream(const c10::Device& device);
  // Calls `body` as in_torch() does, without gradients, and returns when all that it queued is
  // done, so that any stream may read it. What `body` reads must have been done before, and nobody
  // may free it, nor what the body made, while work of another stream that reads it is queued.
  void run(const std::function<void()>& body) const;

 private:
  std::shared_ptr<const c10::Stream> stream_;  // null: there is none
};

// Returns when all is done that this thread queued on that device.
void wait_for_queued(const c10::Device& device);

}  // namespace lockstep
