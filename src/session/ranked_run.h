#pragma once

#include "src/session/run.h"

namespace lockstep {

class RankSeat;

// Throws Error where the options ask for what is not built over ranks, and where the model cannot
// be shared by that many. Opens no more of the model than its config.json.
void check_can_share(const RunOptions& options);

// One rank's share of run(): rank 0 judges and returns the result; the others serve it, and return
// nothing.
std::optional<Result> run_rank(const RunOptions& options,
                               const std::vector<std::string>& command_line, RankSeat& seat);

}  // namespace lockstep
