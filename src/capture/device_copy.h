#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

// Copies bytes of the current CUDA context to the host, on a stream of it, and waits for them, by
// CUDA's driver, which is opened when it is first needed. Throws Error, naming `what`, where there
// is no driver and when it refuses.
void copy_from_device(void* to, const void* from, size_t bytes, void* stream,
                      const std::string& what);

}  // namespace lockstep
