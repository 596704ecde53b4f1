// The readers behind open_trace.
#pragma once

#include <memory>
#include <string>

#include "traces/trace.h"

namespace lockstep {

// A folder of a journal and segments (writers.h). Passes that no segment has come from the journal,
// as digests; `problems` names those of which tensors were kept. Throws Error when not even a
// manifest can be read.
std::unique_ptr<TraceReader> open_folder(const std::string& path);
// One of another program's may be without a seal, or bare (bare_file.h).
std::unique_ptr<TraceReader> open_single_file(const std::string& path);
// It has digests and no tensor, and is not complete where its run did not end.
std::unique_ptr<TraceReader> open_journal(const std::string& path);

}  // namespace lockstep
