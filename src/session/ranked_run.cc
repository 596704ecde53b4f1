#include "src/session/ranked_run.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "src/session/judged_run.h"
#include "src/session/ranked.h"
#include "src/session/session.h"

namespace lockstep {

void check_can_share(const RunOptions& options) {
  constexpr int64_t kMostRanks = 64;
  check(options.ranks <= kMostRanks, "--tp is at most {}, found {}", kMostRanks, options.ranks);
  const auto refuse = [](bool found, const char* option) {
    check(!found, "--tp was found with {}, which is not built for several ranks: leave one out",
          option);
  };
  refuse(options.model.device != "cpu", "--device cuda");
  refuse(!options.model.instructions.executor.empty(), "--executor");
  refuse(!options.modes.empty(), "--modes");
  refuse(options.determinism > 0, "--determinism");
  refuse(options.confirm, "--confirm");
  refuse(options.error_budget, "--error-budget");
  refuse(!options.observe.record_before.empty(), "--record-before");
  for (const FaultRequest& fault : parse_faults(options.faults))
    check(fault.rank < options.ranks,
          "--fault {} names rank {}, but the ranks are 0..{}: name one of those", fault.name,
          fault.rank, options.ranks - 1);
  const ModelConfig config = read_config(options.model.model);
  for (int rank = 0; rank < options.ranks; ++rank)
    plan_of(config, rank, static_cast<int>(options.ranks));
}

std::optional<Result> run_rank(const RunOptions& options,
                               const std::vector<std::string>& command_line, RankSeat& seat) {
  if (seat.rank() == 0) return run(options, command_line, &seat);
  seat.does(RankDoes::loads);
  Session session = open_session(options.model);
  Ranked ranked(session.checkpoint, seat);
  EngineOptions engine = engine_of_rank(session.engine, seat.ranks());
  RankSeams seams = ranked.seams(engine);
  Seeded seeded(session.ops, faults_in_rank(parse_faults(options.faults), seat.rank()),
                ranked.config(), Device::cpu, nullptr, &seams);
  const auto made = ranked.engine(seeded.ops, engine, seeded.hooks);
  for (const Request& request : session.requests) made->submit(request);
  ranked.serve(*made, options.observe.selection());
  return {};
}

}  // namespace lockstep
