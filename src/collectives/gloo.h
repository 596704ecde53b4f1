#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "src/ranks/collectives.h"

namespace lockstep {

// How long a call waits for its peers: how long is too long is the watch's to say
// (src/ranks/launch.h).
inline constexpr std::chrono::hours kCallPatience{24};

// LibTorch's number of a dtype that ranks add in (at::ScalarType: headers name no foreign type).
// Throws Error for any other.
int8_t scalar_type_of(DType dtype);

// The calls of Collectives for tensors in the memory of a GPU: each is queued on its stream.
class GpuCollectives {
 public:
  virtual ~GpuCollectives() = default;
  virtual void all_reduce(const TensorView& tensor) = 0;
  virtual void reduce_scatter(const TensorView& parts, const TensorView& part) = 0;
  virtual void all_gather(const TensorView& parts, const TensorView& part) = 0;
};

// Joins the ranks' GPUs, once the ranks have met at that port.
using JoinGpus = std::function<std::unique_ptr<GpuCollectives>(const Meeting&, int port)>;

// The one library of this shared library: c10d's Gloo, and for tensors on GPUs what `join` gives;
// empty: there are none.
CollectivesLibrary& library_of(std::string name, JoinGpus join);

}  // namespace lockstep
