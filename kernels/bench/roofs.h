#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

class ThreadPool;

// The roofs of this machine, measured now: the most that it can do. The best of many short tries,
// because other processes can only make one slower.

// The size of a buffer that no cache holds: over four times the last cache, 256 MiB at least.
int64_t uncached_bytes();

// Bytes a second that the threads of the pool read of such a buffer together: the best of 1, 4, 8
// and 16 streams a thread with software prefetch. `buffer` has `bytes` bytes that were written to
// (untouched pages are all one page of zeros).
double read_roof(ThreadPool& threads, const void* buffer, int64_t bytes);

// Multiplications and additions a second of the widest product of bf16 numbers into fp32 sums that
// this CPU has, by the threads of the pool together.
struct DotRoof {
  std::string_view path;  // "AMX bf16", "AVX-512 bf16 dot", "fp32 FMA"
  double flops = 0;
};
DotRoof dot_roof(ThreadPool& threads);

}  // namespace lockstep
