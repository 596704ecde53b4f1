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

// The functions of the library of CUDA ops.
struct CudaLibrary {
  const Ops* (*ops)(int, DeviceRuntime*);
  decltype(&lockstep_cuda_broken_ops) broken;
  decltype(&lockstep_cuda_roofs) roofs;
  int (*devices)();
};

// The CUDA ops are a library of their own, so that one binary runs where there is no driver. Never
// closed: tensors of static storage may be released after main.
CudaLibrary opened_library() {
  void* const handle = open_built_library("liblockstep_cuda.so");
  check(handle != nullptr,
        "--device cuda needs the CUDA ops, which could not be opened ({}): build with "
        "-DLOCKSTEP_CUDA=ON and keep liblockstep_cuda.so beside the executable, or use "
        "--device cpu",
        handle == nullptr ? dlerror() : "");
  CudaLibrary library;
  const auto find = [handle]<typename F>(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    check(function != nullptr,
          "liblockstep_cuda.so is not the CUDA library of this build: rebuild it");
  };
  find(library.ops, "lockstep_cuda_ops");
  find(library.broken, "lockstep_cuda_broken_ops");
  find(library.roofs, "lockstep_cuda_roofs");
  find(library.devices, "lockstep_cuda_devices");
  return library;
}

// To look into it again would wait for whoever else loads a library meanwhile.
const CudaLibrary& cuda_library() {
  static const CudaLibrary library = opened_library();
  return library;
}

void open_cuda(int number) {
  const CudaLibrary& library = cuda_library();
  DeviceRuntime runtime;
  cuda_ops = library.ops(number, &runtime);
  register_runtime(runtime);
  broken_cuda_ops = library.broken();
  cuda_roofs = library.roofs();
}

}  // namespace

Device open_device(const std::string& name) {
  const Device device = device_from(name);
  if (device != Device::cpu) open_cuda(device.index);
  return device;
}

int cuda_devices() { return cuda_library().devices(); }

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
