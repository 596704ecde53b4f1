#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace lockstep {

// The cache of a request, by layer: [length, kv heads, head_dim] in the dtype that is shown.
struct RequestCache {
  int64_t length = 0;
  std::vector<at::Tensor> k, v;
  std::vector<int32_t> tokens;
  std::vector<int32_t> pages;  // of the engine, when the request was last in a pass
  int64_t used = 0;            // the last pass of this model that it was in

  size_t bytes() const {
    size_t sum = 0;
    for (const std::vector<at::Tensor>* half : {&k, &v})
      for (const at::Tensor& tensor : *half) sum += tensor.defined() ? tensor.nbytes() : 0;
    return sum;
  }
  // Its tokens are left, by which it can be computed again.
  void forget() { k.clear(), v.clear(); }
  bool is_forgotten() const { return length > 0 && k.empty(); }
};

}  // namespace lockstep
