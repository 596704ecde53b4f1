#pragma once

#include <cstdint>

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}

namespace lockstep {

// Which keys the last `queries` of `keys` positions see; undefined when LibTorch's own causal mask,
// which starts at the first key, says the same. window: of the last keys that each sees; 0: all.
at::Tensor mask_of(int64_t queries, int64_t keys, int64_t window, const c10::Device& device);

}  // namespace lockstep
