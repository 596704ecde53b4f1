// Between this project's tensors, which are in host memory here, and LibTorch's, which may be on a
// CUDA device.
#pragma once

#include <functional>
#include <span>

#include "kernels/base/tensor.h"
#include "src/judge/numbers.h"

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}

namespace lockstep {

// The same memory as LibTorch sees it: the view's owner must outlive what is made of it, and nobody
// may write to it. Throws Error for a tensor that is not on the CPU. It has the view's shape and
// dtype, row-major. A dtype that LibTorch has no name for is an Error too.
at::Tensor to_torch(const TensorView& view);
// A copy on a device, from memory that stays as it is until what this thread has queued there is
// done; on the CPU the memory itself, as above.
at::Tensor to_torch(const TensorView& view, const c10::Device& device);
// The memory of a CUDA device as LibTorch sees it, as the first of them sees the CPU's.
at::Tensor to_torch_there(const TensorView& view);
// The tensor of that view, from some byte of a contiguous one on, whose memory it keeps.
at::Tensor part_of(const at::Tensor& whole, const TensorView& view, int64_t first_byte);
// A contiguous tensor's memory as this project sees it; `tensor` must outlive the view. Throws
// Error for a tensor with strides, or on a device.
TensorView to_view(const at::Tensor& tensor);
// The same, or of a device's, for whoever does not look into it.
TensorView to_view_there(const at::Tensor& tensor);

// In another dtype: widening is exact, narrowing rounds to nearest even. The tensor itself when it
// has that dtype already. NaN and Inf stay what they are.
at::Tensor as_dtype(const at::Tensor& tensor, DType dtype);
// The same in host memory, contiguous. From a device: in pinned memory, which is several times as
// fast to copy to as what the system hands out anew, and which LibTorch keeps for the next.
at::Tensor on_host(const at::Tensor& tensor);
// All elements, row-major, as doubles, from wherever they are: nobody may write to `tensor` then.
// The numbers own what they look into: a copy, or the tensor itself where it is fp64 in host memory
// already.
Numbers to_numbers(const at::Tensor& tensor);
// The same, left where they are until bring() copies them here.
Numbers held_numbers(const at::Tensor& tensor);
void bring(Numbers& numbers);
// Brings those that are not here, few ones by one copy.
void bring(std::span<Numbers* const> all);
// The tensor that numbers of the two functions above look into: fp64, of any strides.
const at::Tensor& tensor_of(const Numbers& numbers);

Shape shape_of(const at::Tensor& tensor);

// Holds LibTorch at as many threads as `work` multiply-adds are worth, `most` at most (0: all
// cores), until it is destroyed: then as many as before, since the engine's libraries count on the
// same ones. They may be nested, since each puts back what it found.
class Threads {
 public:
  Threads(double work, int most);
  ~Threads();
  Threads(const Threads&) = delete;

 private:
  int before_;
};

// Gives back to a device what LibTorch keeps there for the next tensors, in pieces that may be too
// small for them, and that nobody else can use.
void free_unused(const c10::Device& device);

// Calls `body` on one thread, which may raise Threads, and turns LibTorch's exceptions into an
// Error, NoMemory where memory is all that it lacks. Errors that `body` throws itself pass
// unchanged.
void in_torch(const std::function<void()>& body);

}  // namespace lockstep
