// The side of libFuzzer, built with clang and its sanitizers. Beside what those find, more memory
// at a time than 64 times the input and 64 MB is a finding; hangs are found by -timeout.
#include <pthread.h>
#include <sanitizer/allocator_interface.h>
#include <sanitizer/common_interface_defs.h>

#include <cstddef>
#include <cstdint>

#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

constexpr int64_t kFree = 64 << 20, kPerByte = 64;
int64_t live = 0, most = INT64_MAX;  // bytes; the targets have one thread

void allocated(const volatile void*, size_t bytes) {
  live += static_cast<int64_t>(bytes);
  if (live <= most) return;
  most = INT64_MAX;
  wrong("more than 64 times the input and 64 MB of memory");
}

void freed(const volatile void* at) {
  if (at == nullptr) return;
  live -= static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(at)));
}

}  // namespace

void allow_memory(size_t input_bytes) {
  live = 0;  // what is freed was allocated after, but for a cache of the target that grew before
  most = kFree + kPerByte * static_cast<int64_t>(input_bytes);
}

}  // namespace lockstep::fuzz

// On some forged files HDF5's library reads memory that it did not write. That must be alike in the
// process that tries a file and in this one, as it is after the fork of traces/trial.cc.
extern "C" const char* __asan_default_options() { return "max_malloc_fill_size=1048576"; }

// What the library does not free on its way out of such a file is not this project's.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  using namespace lockstep::fuzz;
  __sanitizer_install_malloc_and_free_hooks(allocated, freed);
  // A crash of a process that a target starts is no finding.
  pthread_atfork(nullptr, nullptr, [] { __sanitizer_set_death_callback(nullptr); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  using namespace lockstep::fuzz;
  allow_memory(count);
  attempt({reinterpret_cast<const char*>(bytes), count});
  most = INT64_MAX;
  return 0;
}
