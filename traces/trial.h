// A reading that may end its process: HDF5's library crashes on some forged files.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

// Runs `reading`, which reads `path`, in a process of its own first: a copy of this one, with what
// memory it has and 64 times the file and 256 MB more, and of CPU time 2 s and one a MB. What it
// throws there is thrown here, as an Error; and an Error if it crashed or did not end. Where no
// process can be had, does nothing. What `reading` changes is lost. It waits for that process. The
// child is a fork: threads of this process do not exist in it, and `reading` must not wait for any.
void try_reading(const std::string& path, const std::function<void()>& reading);

}  // namespace lockstep
