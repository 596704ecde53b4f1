#include "kernels/base/ending.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace lockstep {
namespace {

std::atomic<bool> in_full = false;

// The system calls this after what was registered later, and before LibTorch's ends. Status -1 is
// HDF5's, of which tell_lack_of_memory has more to say.
void leave(int status, void*) {
  if (status == -1 || in_full) return;
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

void end_at_once() {
  for (const char* injected : {"LD_PRELOAD", "CUDA_INJECTION64_PATH"})
    if (std::getenv(injected) != nullptr) return;
  const bool looks_for_leaks = dlsym(RTLD_DEFAULT, "__lsan_do_leak_check") != nullptr;
  if (!looks_for_leaks) ::on_exit(leave, nullptr);
}

void keep_ends() { in_full = true; }

}  // namespace lockstep
