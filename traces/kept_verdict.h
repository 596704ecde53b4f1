// The verdict of a trace that was judged, kept in the trace.
#pragma once

#include <string>

namespace lockstep {

// Facts of the provenance that say what the run was found to be, when it was judged as it ran or
// since: the verdict's name, and its story.
inline constexpr const char* kVerdictFact = "verdict";
inline constexpr const char* kStoryFact = "story";

// Writes a verdict that was found later into the trace at `path`, in the place of an earlier one,
// and returns true. False where it would have to go into a file that is sealed (X.h5, X.jsonl):
// such a trace stays as it is. Throws Error when it cannot be written.
bool keep_verdict(const std::string& path, const std::string& verdict, const std::string& story);

}  // namespace lockstep
