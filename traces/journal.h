// The journal: a trace's digests as JSON lines. README.md has an example.
#pragma once

#include <string>
#include <vector>

#include "traces/manifest.h"

namespace lockstep {

// The lines of a pass: one for the pass, then one for each tensor, whose `seq` count on from `seq`.
// The tensors must have digests; data is not looked at. Each line ends with a line break.
std::string journal_lines(const Pass& pass, int64_t seq);

struct Journal {
  SavedManifest saved;       // the last one: with the requests as they ended, if they did
  std::vector<Pass> passes;  // whole ones alone, without data
  std::string problem;       // why reading stopped before the end of the file; empty: it did not
};
// Throws Error when there is no file or its first line is no manifest. A line that was cut or
// damaged ends the journal there.
Journal read_journal(const std::string& path);

}  // namespace lockstep
