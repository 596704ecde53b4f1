#include "src/session/collectives_library.h"

#include "src/session/shared_library.h"

namespace lockstep {

CollectivesLibrary& open_collectives(DeviceKind kind) {
  using Factory = CollectivesLibrary* (*)();
  const bool gpus = kind == DeviceKind::cuda;
  static const auto make = reinterpret_cast<Factory>(torch_factory(
      gpus ? "liblockstep_collectives_cuda.so" : "liblockstep_collectives.so",
      "lockstep_collectives",
      gpus ? "--tp with --device cuda needs the NCCL of a LibTorch that was built for CUDA"
           : "--tp needs LibTorch's collectives"));
  static CollectivesLibrary* library = make();
  return *library;
}

}  // namespace lockstep
