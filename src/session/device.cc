// One set of CUDA ops for the process: several devices share the table, and each has a runtime of
// its own, by which its tensors and streams are found.
#include "src/session/device.h"

#include <dlfcn.h>

#include "kernels/base/check.h"
#include "kernels/base/memory.h"
#include "kernels/faults/broken_ops.h"
#include "src/session/shared_library.h"

namespace lockstep {
namespace {

const Ops* cuda_ops = nullptr;
const Ops* broken_cuda_ops = nullptr;
const RoofKernels* cuda_roofs = nullptr;

// The CUDA ops are a library of their own, so that one binary runs where there is no driver. Never
// closed: tensors of static storage may be released after main.
void* cuda_library() {
  void* handle = open_built_library("liblockstep_cuda.so");
  check(handle != nullptr,
        "--device cuda needs the CUDA ops, which could not be opened ({}): build with "
        "-DLOCKSTEP_CUDA=ON and keep liblockstep_cuda.so beside the executable, or use "
        "--device cpu",
        handle == nullptr ? dlerror() : "");
  return handle;
}

void open_cuda(int number) {
  void* handle = cuda_library();
  using Factory = const Ops* (*)(int, DeviceRuntime*);
  const auto factory = reinterpret_cast<Factory>(dlsym(handle, "lockstep_cuda_ops"));
  const auto broken = reinterpret_cast<decltype(&lockstep_cuda_broken_ops)>(
      dlsym(handle, "lockstep_cuda_broken_ops"));
  const auto roofs =
      reinterpret_cast<decltype(&lockstep_cuda_roofs)>(dlsym(handle, "lockstep_cuda_roofs"));
  check(factory != nullptr && broken != nullptr && roofs != nullptr,
        "liblockstep_cuda.so is not the CUDA library of this build: rebuild it");
  DeviceRuntime runtime;
  cuda_ops = factory(number, &runtime);
  register_runtime(runtime);
  broken_cuda_ops = broken();
  cuda_roofs = roofs();
}

}  // namespace

Device open_device(const std::string& name) {
  const Device device = device_from(name);
  if (device != Device::cpu) open_cuda(device.index);
  return device;
}

int cuda_devices() {
  const auto count = reinterpret_cast<int (*)()>(dlsym(cuda_library(), "lockstep_cuda_devices"));
  check(count != nullptr, "liblockstep_cuda.so is not the CUDA library of this build: rebuild it");
  return count();
}

Ops ops_of(Device device) {
  if (device == Device::cpu) return cpu_ops();
  check(cuda_ops != nullptr, "the ops of a CUDA device were wanted before one was opened");
  return *cuda_ops;
}

const Ops* broken_ops_of(Device device) {
  return device == Device::cpu ? nullptr : broken_cuda_ops;
}

int number_of(Device device) { return device == Device::cpu ? -1 : device.index; }

const RoofKernels& roof_kernels() {
  check(cuda_roofs != nullptr, "the roofs of a CUDA device were wanted before one was opened");
  return *cuda_roofs;
}

}  // namespace lockstep
