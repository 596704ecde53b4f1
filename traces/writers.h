// The writers behind create_trace. Each makes something new: nothing is overwritten.
#pragma once

#include <memory>
#include <string>

#include "traces/trace.h"

namespace lockstep {

// A segment is closed after so many passes or bytes of tensors, and safe from a kill once
// published.
inline constexpr size_t kSegmentPasses = 8;
inline constexpr int64_t kSegmentBytes = int64_t{64} << 20;

// X.trace: a folder of manifest.json, run.journal and, of passes of which tensors are kept,
// segments seg-000000.h5, seg-000001.h5, ... Each pass is in the journal before its segment is
// closed, and segments are published in their order beside the run, so that a kill costs at most
// the tensors of the last few segments.
std::unique_ptr<TraceWriter> create_folder(const std::string& path, const Manifest& manifest);
// X.h5: one HDF5 file. Until `finish` it is a folder of segments, X.h5.part, which opens as a
// trace.
std::unique_ptr<TraceWriter> create_single_file(const std::string& path, const Manifest& manifest);
// X.journal: the journal alone, for digests.
std::unique_ptr<TraceWriter> create_journal(const std::string& path, const Manifest& manifest);

// One pass as X.h5: whole or not at all, and on the disk on return. Replaces what was there.
void replace_single_file(const std::string& path, const Manifest& manifest, const Pass& pass);

}  // namespace lockstep
