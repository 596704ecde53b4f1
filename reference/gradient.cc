#include "reference/gradient.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <utility>

namespace lockstep {
namespace {

// A node of LibTorch's graph with one input and one output.
class Back final : public torch::autograd::Node {
 public:
  explicit Back(std::function<at::Tensor(const at::Tensor&)> back) : back_(std::move(back)) {}

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::Tensor& gradient = gradients.at(0);
    return {gradient.defined() ? back_(gradient) : at::Tensor()};
  }

  std::function<at::Tensor(const at::Tensor&)> back_;
};

}  // namespace

at::Tensor with_gradient(const at::Tensor& x, const at::Tensor& value,
                         std::function<at::Tensor(const at::Tensor&)> back) {
  if (!x.requires_grad()) return value;
  const std::shared_ptr<Back> node(new Back(std::move(back)), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  // The same memory without its history, so that the node is all that lies behind it.
  at::Tensor y = value.detach();
  torch::autograd::set_history(y, node);
  return y;
}

}  // namespace lockstep
