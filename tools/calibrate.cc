// lockstep calibrate: what clean runs reach of the limits, so that a worse one shows.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "kernels/base/check.h"
#include "src/report/output.h"
#include "src/session/judged_run.h"
#include "src/session/provenance.h"
#include "src/session/reference_library.h"
#include "src/session/run_estimate.h"
#include "src/session/session.h"
#include "tools/options.h"

namespace lockstep {
namespace {

// A reference that is this many budgets off is not one to learn from.
constexpr double kSuspect = 4;

// Learns from a run that is clean by theory; no other widens a limit.
Result learn(const Session& session, const RoundingOptions& rounding,
             const std::vector<std::string>& command_line, Limits& limits) {
  JudgeOptions judge{.learn = &limits};
  ask_for(rounding, judge);
  const std::string notice =
      estimate_judging(session.checkpoint.config(), session.engine, session.requests).notice();
  if (!notice.empty()) fmt::print(stderr, "{}\n", notice);
  Progress progress;
  Result result = judge_run({.checkpoint = session.checkpoint,
                             .reference = open_reference(),
                             .engine = session.engine,
                             .ops = session.ops,
                             .user_op_calls = session.user_op_calls.get(),
                             .requests = session.requests,
                             .judge = judge,
                             .provenance = provenance_of(session, command_line),
                             .progress = [&](const std::string& line) { progress.show(line); }});
  if (!result.findings.empty())
    fail("limits are learnt from clean runs, and this one is not{}: {}; repair it first",
         result.first->budgets > kSuspect && !session.user_op_calls ? " (reference suspect)" : "",
         result.story);
  check(result.verdict == RunVerdict::clean, "limits are learnt from clean runs, found: {}",
        result.story);
  return result;
}

}  // namespace

int calibrate_command(Args args) {
  CLI::App app{
      "Run the engine beside the reference and keep what its nodes reach of their limits, by op "
      "and\n"
      "dtype, with half as much room again: limits for run and judge --limits. They are never "
      "wider\n"
      "than those of theory, and a run that is not clean is refused. A file that is there already\n"
      "is widened to what both runs need: give several runs, of all dtypes, the same file.",
      "lockstep calibrate"};
  ModelOptions options;
  RoundingOptions rounding;
  std::string out;
  add_model_options(app, options);
  add_rounding_options(app, rounding);
  begin_group(app, "Output");
  app.add_option("-o,--out", out, "where the limits go")->type_name("FILE")->required();
  if (!parse(app, args,
             "  lockstep calibrate --model Qwen3-0.6B --prompt 'To be, or not' --out cpu.json\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --limits cpu.json\n"))
    return 0;
  // A file that an option reads must not be the one that is written.
  check_output({"--out", out}, checked_files(options, {{"--out", out}}));
  // Limits of earlier runs stay, and this one may only widen them to what it needs.
  Limits limits = std::filesystem::exists(out) ? Limits::read(out) : Limits{};
  const Result result =
      learn(open_session(options), rounding, command_line_of("calibrate", args), limits);
  write_file(out, limits.json());
  print(fmt::format("{}\nlimits {} written to {}\n", result.story, limits.name(), out));
  return 0;
}

}  // namespace lockstep
