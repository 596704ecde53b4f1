// The judgement of a trace, kept in the trace: the result as JSON that `--json` would write.
//
//   X.trace   the file result.json in the folder
//   X.h5      behind what is sealed: a line with its size and xxh3, then the JSON
//   X.journal a last record of kind "result"
//
// No byte of the trace itself changes by it, so that its hashes and its seal stay what they were.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Begins a kept result behind the end of an HDF5 file. A part of one may be all there is, when
// writing was cut off: then the trace is whole, and can be judged again.
inline constexpr std::string_view kResultInFile = "lockstep result: ";
// Whether what follows the end of a trace is a kept result, or a part of one.
constexpr bool begins_result(std::string_view rest) {
  return rest.substr(0, kResultInFile.size()) == kResultInFile.substr(0, rest.size());
}

// Whether a result can be kept in the trace at `path`: a file of another program stays as it is.
bool can_keep_result(const std::string& path);
// Keeps a result in the trace at `path`, which has ended, in the place of an earlier one. Throws
// Error when it cannot be written; the trace is then as whole as it was.
void write_kept_result(const std::string& path, const std::string& json);

// The result that the trace at `path` keeps; "" where it keeps none. Throws Error where it keeps a
// part of one, or one that was changed: that is no trace that was never judged.
std::string read_kept_result(const std::string& path);

}  // namespace lockstep
