#include "src/session/device.h"

#include <dlfcn.h>

#include <charconv>
#include <filesystem>

#include "kernels/base/check.h"
#include "kernels/base/digest.h"
#include "kernels/base/memory.h"
#include "kernels/faults/broken_ops.h"

namespace lockstep {
namespace {

const Ops* cuda_ops = nullptr;
const Ops* broken_cuda_ops = nullptr;
const RoofKernels* cuda_roofs = nullptr;

int number_in(const std::string& name) {
  if (name == "cuda") return 0;
  int number = -1;
  const char* end = name.data() + name.size();
  if (name.starts_with("cuda:") && std::from_chars(name.data() + 5, end, number).ptr == end &&
      number >= 0)
    return number;
  fail("--device wants cpu, cuda or cuda:N, found \"{}\"", name);
}

void open_cuda(int number) {
  const std::string path =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "liblockstep_cuda.so";
  // Never closed: tensors of static storage may be released after main.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  check(handle != nullptr,
        "--device cuda needs the CUDA ops, which could not be opened ({}): build with "
        "-DLOCKSTEP_CUDA=ON and keep liblockstep_cuda.so beside the executable, or use "
        "--device cpu",
        handle == nullptr ? dlerror() : "");
  using Factory = const Ops* (*)(int, DeviceMemory*);
  const auto factory = reinterpret_cast<Factory>(dlsym(handle, "lockstep_cuda_ops"));
  const auto digests =
      reinterpret_cast<const DigestMaker* (*)()>(dlsym(handle, "lockstep_cuda_digests"));
  const auto broken = reinterpret_cast<decltype(&lockstep_cuda_broken_ops)>(
      dlsym(handle, "lockstep_cuda_broken_ops"));
  const auto roofs =
      reinterpret_cast<decltype(&lockstep_cuda_roofs)>(dlsym(handle, "lockstep_cuda_roofs"));
  check(factory != nullptr && digests != nullptr && broken != nullptr && roofs != nullptr,
        "{} is not the CUDA library of this build: rebuild it", path);
  DeviceMemory memory;
  cuda_ops = factory(number, &memory);
  set_cuda_memory(memory);
  set_digest_maker(*digests());
  broken_cuda_ops = broken();
  cuda_roofs = roofs();
}

}  // namespace

Device open_device(const std::string& name) {
  if (name == "cpu") return Device::cpu;
  open_cuda(number_in(name));
  return Device::cuda;
}

Ops ops_of(Device device) {
  if (device == Device::cpu) return cpu_ops();
  check(cuda_ops != nullptr, "the ops of a CUDA device were wanted before one was opened");
  return *cuda_ops;
}

const Ops* broken_ops_of(Device device) {
  return device == Device::cpu ? nullptr : broken_cuda_ops;
}

int number_of(Device device) { return device == Device::cpu ? -1 : cuda_memory().number; }

const RoofKernels& roof_kernels() {
  check(cuda_roofs != nullptr, "the roofs of a CUDA device were wanted before one was opened");
  return *cuda_roofs;
}

}  // namespace lockstep
