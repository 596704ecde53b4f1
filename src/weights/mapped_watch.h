#pragma once

namespace lockstep {

// From here on, who reads a mapped file (mapped_file.h) that somebody has cut ends this process
// with a sentence on stderr and status 2, where it would end by SIGBUS. The process must be this
// project's own.
void watch_mapped_files();

}  // namespace lockstep
