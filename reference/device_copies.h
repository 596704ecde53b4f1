#pragma once

#include <functional>
#include <map>
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
// them do. The last ones are kept, up to a bound, and the last of those that were on the device
// already, up to another: those whose owners are gone until another is made. Any thread may ask.
class DeviceCopies {
 public:
  // memory: that whoever computes has; 0: no bound is set.
  explicit DeviceCopies(int64_t memory);
  ~DeviceCopies();

  // Keeps a copy of `there`, on that device, which holds the numbers of `here`. owner: as in of().
  // It is left out of few bytes, and of very many. Throws Error where they are not alike.
  void hold(const TensorView& here, const std::shared_ptr<const void>& owner,
            const TensorView& there, const c10::Device& device);

  // The tensor as to_torch(view, device) has it, which nobody may write to. owner: keeps the view's
  // numbers as they are, and points to them; any other, and null: it is copied for this call alone.
  // It stays until the thread's Reader ends. To make a copy that is kept waits for all that this
  // thread has queued. Rows of a tensor that is kept are not copied.
  at::Tensor of(const TensorView& view, const std::shared_ptr<const void>& owner,
                const c10::Device& device);

  // Whether a copy of it would be kept, by its size and owner.
  static bool keeps(const TensorView& view, const std::shared_ptr<const void>& owner,
                    const c10::Device& device);
  // Keeps none of them any more, as where memory is short. Returns whether some were held.
  bool clear();

  // Ends after all is done that its thread queued.
  class Reader {
   public:
    Reader() = default;
    ~Reader();
    Reader(const Reader&) = delete;
  };

 private:
  struct Copy;
  using Copies = std::vector<std::shared_ptr<Copy>>;
  std::shared_ptr<Copy> known(const TensorView& view, const std::shared_ptr<const void>& owner,
                              const c10::Device& device) const;
  // Both return those that are kept no more.
  Copies keep(std::shared_ptr<Copy> copy);
  Copies drop(const std::function<bool(const Copy&)>& which);
  void make(const std::shared_ptr<Copy>& copy);
  int64_t& bytes_of_kind(const Copy& copy);

  mutable std::mutex mutex_;
  std::map<const char*, std::shared_ptr<Copy>> kept_;  // by the first of their bytes on the host
  uint64_t made_ = 0;
  int64_t copied_bytes_ = 0, held_bytes_ = 0;
  int64_t most_held_;
};

}  // namespace lockstep
