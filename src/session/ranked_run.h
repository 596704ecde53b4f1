#pragma once

#include "src/faults/faults.h"
#include "src/ranks/launch.h"
#include "src/session/ranked.h"
#include "src/session/run.h"

namespace lockstep {

struct Session;

// Throws Error where the options ask for what is not built over ranks, and where the model cannot
// be shared by that many. Opens no more of the model than its config.json.
void check_can_share(const RunOptions& options);

// Where ranks that are started elsewhere meet: as --rank and --rendezvous say, or, with --tp, what
// torchrun says in the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and options.rank
// is then as it says. Nothing: this process starts all ranks. Throws Error where that does not fit.
std::optional<Rendezvous> rendezvous_of(RunOptions& options);

// A rank comes to the others with this; all that must be alike is among its facts.
Ranked::Brings brings_of(const RunOptions& options, const Session& session);

// The device of a rank, where --device says "cpu" or "cuda": a card each. Throws Error where this
// machine has too few.
std::string device_of_rank(const std::string& device, const RankSeat& seat);

// Serves the requests as another rank than 0, which judges what it shows. engine: of a model over
// none; faults: of all ranks.
void serve_as_rank(Ranked& ranked, const Ops& ops, const EngineOptions& engine,
                   const std::vector<Request>& requests, const std::vector<FaultRequest>& faults,
                   const Selection& selection);

// Serves what the options ask for over their ranks, or as the one that is to be here; returns the
// exit status, which `show` makes of the result in rank 0. Throws Error as run_ranks() does.
int run_over_ranks(const RunOptions& options, const std::optional<Rendezvous>& elsewhere,
                   const std::vector<std::string>& command_line,
                   const std::function<int(const Result&)>& show);

}  // namespace lockstep
