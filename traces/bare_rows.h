// The rows of a trace that another program wrote: /passes, and which of them a tensor is of.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "probes/record.h"
#include "traces/hdf5_file.h"

namespace lockstep {

// The passes by their rows, in their order; which of them have logits is left open. Throws Error,
// in the words of README.md, when a column is missing or does not fit the others.
std::vector<PassInfo> bare_rows(const Hdf5File& file);

// Throws Error, naming `where`, unless rows of a request lie together, in the order of their
// positions.
void check_rows(const PassInfo& info, const std::string& where);
// Says that a request whose one row is past its first position is decoded.
void put_phases(PassInfo& info);
// The rows of the pass that a tensor of so many rows is of: all, or the last of each request.
// Nothing when it is neither.
std::optional<std::vector<int32_t>> rows_by_count(int64_t count, const PassInfo& info);

// Says which rows of the pass a tensor of so many rows of logits is of: all, or the last of each
// request. Throws Error, naming `where`, when it is neither, or another tensor said otherwise.
void put_logit_rows(int64_t count, const std::string& where, PassInfo& info);

}  // namespace lockstep
