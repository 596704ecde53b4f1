// Rank 0 judges, and tells this process by a file that both have open, without a name.
#include "src/selftest/rank_cases.h"

#include <cstdio>
#include <memory>

#include "kernels/base/check.h"
#include "kernels/files/json.h"
#include "src/selftest/outcomes.h"
#include "src/session/device.h"
#include "src/session/judged_run.h"
#include "src/session/ranked_run.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kPatience{20};

Result judged_as_first(const SelftestRun& run, const SelftestPlan::Case& c, Ranked& ranked) {
  return judge_run({.checkpoint = run.checkpoint,
                    .reference = run.reference,
                    .engine = engine_of_rank(c.engine, c.ranks, c.faults),
                    .ranks = &ranked,
                    .requests = c.requests,
                    .faults = c.faults,
                    .judge = {.limits = run.limits},
                    .causes = false});
}

}  // namespace

Selftest::Outcome judged_over_ranks(const SelftestRun& run, const SelftestPlan::Case& c) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> told(std::tmpfile(), std::fclose);
  check(told != nullptr, "no file could be made for what a rank tells: is TMPDIR full?");
  run_ranks(c.ranks, kPatience, [&](RankSeat& seat) {
    Ranked ranked(run.checkpoint, seat, {.device = c.engine.device, .by_rows = c.by_rows});
    if (seat.rank() > 0) {
      serve_as_rank(ranked, ops_of(c.engine.device), c.engine, c.requests, c.faults, {});
      return 0;
    }
    const std::string line = line_of(outcome_of(c, judged_as_first(run, c, ranked)));
    std::fwrite(line.data(), 1, line.size(), told.get());
    return 0;
  });
  std::rewind(told.get());
  std::string line;
  for (int byte = std::fgetc(told.get()); byte != EOF; byte = std::fgetc(told.get()))
    line += static_cast<char>(byte);
  return outcome_from(JsonDocument(line, {"what rank 0 tells", ""}).root());
}

}  // namespace lockstep
