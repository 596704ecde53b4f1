#pragma once

#include <string_view>

#include "kernels/base/memory.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// Memory for the output of one foreign call in which it shows what was written: it is filled with a
// pattern that no arithmetic makes, and surrounded by guard bytes. It lies on the device of the
// output, which it borrows.
class GuardedOutput {
 public:
  static constexpr int64_t kGuardBytes = 256;  // on either side

  explicit GuardedOutput(const TensorView& out);

  // Where the call shall write: shape and dtype are the output's.
  const TensorView& view() const { return view_; }
  // The same with both guards, as bytes.
  const Tensor& whole() const { return there_; }

  // Hands what was written on to the output. Throws Error, which begins with `who`, when bytes
  // beside it were written or an element was not.
  void take(std::string_view who);

 private:
  int64_t bytes() const { return out_.bytes() + 2 * kGuardBytes; }

  TensorView out_;
  Tensor host_, there_;
  TensorView view_;
};

}  // namespace lockstep
