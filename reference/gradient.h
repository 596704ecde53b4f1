#pragma once

#include <functional>

namespace at {
class Tensor;
}

namespace lockstep {

// `value`, which was made of x outside of what LibTorch differentiates, as a function of x: `back`
// makes of the derivative by the value that by x. `value` itself where nobody asks x for one.
at::Tensor with_gradient(const at::Tensor& x, const at::Tensor& value,
                         std::function<at::Tensor(const at::Tensor& gradient)> back);

}  // namespace lockstep
