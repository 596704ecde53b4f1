// CUDA's driver is opened at run time, by the two functions that a copy takes: the library that an
// engine loads must load on machines without CUDA, and must not bring a runtime of its own into a
// process that has one. The copy runs on the engine's stream, behind the kernels that make the
// tensor, and is waited for.
#include "src/capture/device_copy.h"

#include <dlfcn.h>

#include <bit>
#include <cstdint>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// The two functions of CUDA's driver that are needed, as cuda.h declares them; null without one.
struct Driver {
  int (*copy)(void* to, uint64_t from, size_t bytes, void* stream) = nullptr;
  int (*wait)(void* stream) = nullptr;
};

// A static that is made once, by whichever thread comes first.
const Driver& driver() {
  static const Driver opened = [] {
    Driver found;
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return found;
    found.copy = std::bit_cast<decltype(found.copy)>(::dlsym(library, "cuMemcpyDtoHAsync_v2"));
    found.wait = std::bit_cast<decltype(found.wait)>(::dlsym(library, "cuStreamSynchronize"));
    return found;
  }();
  return opened;
}

}  // namespace

void copy_from_device(void* to, const void* from, size_t bytes, void* stream,
                      const std::string& what) {
  check(driver().copy != nullptr && driver().wait != nullptr,
        "{} lies on a CUDA device, and CUDA's driver cannot be opened: copy it to the host first",
        what);
  int status = driver().copy(to, std::bit_cast<uint64_t>(from), bytes, stream);
  if (status == 0) status = driver().wait(stream);
  check(status == 0,
        "{} cannot be copied from its CUDA device (CUDA's driver says {}): its context was wanted "
        "to be the thread's current one",
        what, status);
}

}  // namespace lockstep
