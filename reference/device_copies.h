#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/base/tensor.h"

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}

namespace lockstep {

// Copies of tensors on a device for some threads that read the same ones there, each by a stream of
// its own: the result of an op is what some others read, and to copy it takes longer than most of
// them do. The last ones are kept, up to a bound: those whose owners are gone until another is
// made. Any thread may ask.
class DeviceCopies {
 public:
  DeviceCopies();
  ~DeviceCopies();

  // The tensor as to_torch(view, device) has it, which nobody may write to. owner: keeps the view's
  // numbers as they are, and points to them; any other, and null: it is copied for this call alone.
  // It stays until the thread's Reader ends. To make a copy that is kept waits for all that this
  // thread has queued.
  at::Tensor of(const TensorView& view, const std::shared_ptr<const void>& owner,
                const c10::Device& device);

  // Whether a copy of it would be kept, by its size and owner.
  static bool keeps(const TensorView& view, const std::shared_ptr<const void>& owner,
                    const c10::Device& device);
  // Keeps none of them any more, as where memory is short.
  void clear();

  // Ends after all is done that its thread queued.
  class Reader {
   public:
    Reader() = default;
    ~Reader();
    Reader(const Reader&) = delete;
  };

 private:
  struct Copy;
  std::shared_ptr<Copy> known(const TensorView& view, const std::shared_ptr<const void>& owner,
                              const c10::Device& device) const;
  // Returns those that are kept no more.
  std::vector<std::shared_ptr<Copy>> keep(std::shared_ptr<Copy> copy);
  void make(const std::shared_ptr<Copy>& copy);

  mutable std::mutex mutex_;
  std::list<std::shared_ptr<Copy>> kept_;  // in the order in which they were made
  int64_t bytes_ = 0;                      // of them
};

}  // namespace lockstep
