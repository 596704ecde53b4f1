// A weight is widened block by block inside a product, and LibTorch, were it to differentiate that,
// would keep every widened block until the way back. So products are computed outside of what it
// records, and enter its graph as one step whose derivative is given by hand.
#pragma once

#include <functional>

namespace at {
class Tensor;
}

namespace lockstep {

// `value`, which was made of x outside of what LibTorch differentiates, as a function of x: `back`
// makes of the derivative by the value that by x. `value` itself where nobody asks x for one.
// `value` has any shape; `back` gets a gradient of that shape and gives one of x's.
at::Tensor with_gradient(const at::Tensor& x, const at::Tensor& value,
                         std::function<at::Tensor(const at::Tensor& gradient)> back);

}  // namespace lockstep
