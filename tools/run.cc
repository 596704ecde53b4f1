// lockstep run: the main job. The engine beside the reference, every node judged as it goes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "src/report/report.h"
#include "src/session/confirm.h"
#include "src/session/instructions.h"
#include "src/session/judged_run.h"
#include "src/session/kept_result.h"
#include "src/session/modes.h"
#include "src/session/provenance.h"
#include "src/session/reference_library.h"
#include "src/session/result_texts.h"
#include "src/session/run_estimate.h"
#include "src/session/session.h"
#include "tools/options.h"

namespace lockstep {
namespace {

struct RunOptions {
  ModelOptions model;
  ObserveOptions observe;
  ReportOptions report;
  std::vector<std::string> faults;
  std::string limits, accumulator;
  RoundingOptions rounding;
  bool no_audit = false, confirm = false, fail_fast = false;
  std::string modes;  // empty: beside the reference
};

// The engine beside the reference.
Result run(const RunOptions& options, Session& session, Progress& progress,
           const std::map<std::string, std::string>& provenance) {
  // Bad options are said first: opening the reference takes a while, and a build may have none.
  const std::vector<FaultRequest> faults = parse_faults(options.faults);
  JudgeOptions judge{.selection = options.observe.selection(),
                     .limits = limits_of(options.limits),
                     .accumulator = accumulator_of(options.accumulator),
                     .fail_fast = options.fail_fast};
  ask_for(options.rounding, judge);
  judge.selection.check_layers(static_cast<int>(session.checkpoint.config().layers));
  const auto before = record_before_of(options.observe, options.model, session.engine);
  const std::string notice =
      estimate_judging(session.checkpoint.config(), session.engine, session.requests).notice();
  if (!notice.empty()) fmt::print(stderr, "{}\n", notice);
  progress.show("opening the reference");
  const JudgedRun run{.checkpoint = session.checkpoint,
                      .reference = open_reference(),
                      .engine = session.engine,
                      .ops = session.ops,
                      .requests = session.requests,
                      .faults = faults,
                      .judge = judge,
                      .before = before.get(),
                      .audit = !options.no_audit,
                      .trace = options.observe.trace,
                      .level = trace_level_from(options.observe.keep),
                      .provenance = provenance,
                      .progress = [&](const std::string& line) { progress.show(line); }};
  Result result = judge_run(run);
  if (options.confirm) {
    progress.show("running again with ops put right");
    result.confirmations = confirm(run, result);
  }
  return result;
}

// The engine against itself, served in other ways.
Result run_in_modes(const RunOptions& options, Session& session, Progress& progress,
                    const std::map<std::string, std::string>& provenance) {
  return run_modes({.checkpoint = session.checkpoint,
                    .engine = session.engine,
                    .requests = session.requests,
                    .faults = parse_faults(options.faults),
                    .modes = modes_from(options.modes),
                    .ops = session.ops,
                    .provenance = provenance,
                    .progress = [&](std::string_view mode) {
                      progress.show(fmt::format("serving: {}", mode));
                    }});
}

Result result_of(const RunOptions& options, const std::vector<std::string>& command_line) {
  Session session = open_session(options.model);
  if (options.confirm) check_can_confirm(session);
  const auto provenance = provenance_of(session, command_line);
  Progress progress(options.report.detail);
  Result result =
      (options.modes.empty() ? run : run_in_modes)(options, session, progress, provenance);
  if (session.schedule) name_instructions(result, *session.schedule);
  if (session.tokenizer) add_texts(result, *session.tokenizer);
  if (exit_status(result) != 0) return result;
  for (const FaultRequest& fault : parse_faults(options.faults))
    result.notes.push_back(fmt::format("nothing shows the seeded {}, which needs {}", fault.name,
                                       fault_of(fault).needs));
  return result;
}

}  // namespace

int run_command(Args args) {
  CLI::App app{
      "Run the engine beside the LibTorch reference and judge every op of every layer against the\n"
      "exact result on the op's own inputs. Names the first op that introduced an error, or says\n"
      "that none did. Exit status: 0 clean, 1 diverged, 2 trouble or inconclusive.",
      "lockstep run"};
  RunOptions options;
  add_model_options(app, options.model);
  add_observe_options(app, options.observe);
  add_fault_option(app, options.faults);
  add_fail_fast_option(app, options.fail_fast);
  app.add_flag("--no-audit", options.no_audit, "do not check what is read from the K/V cache");
  app.add_flag("--confirm", options.confirm,
               "run again with what was found wrong put right, all of it and all but one, and "
               "compute the worst elements a second time, by another hand than the oracle's");
  CLI::Option* modes = add_modes_option(app, options.modes);
  add_limits_option(app, options.limits);
  add_rounding_options(app, options.rounding);
  add_accumulator_option(app, options.accumulator);
  for (const char* of_reference :
       {"--keep", "--trace", "--record-before", "--points", "--layers", "--positions", "--no-audit",
        "--confirm", "--fail-fast", "--limits", "--schema", "--rounding", "--accumulator"})
    modes->excludes(app.get_option(of_reference));
  add_result_options(app, options.report);
  if (!parse(app, args,
             "  lockstep run --model Qwen3-0.6B --prompt 'To be, or not to be'\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --trace once.trace --keep full\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --fault rope-interleaved@layer=3\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --modes all\n"))
    return 0;
  check_outputs(options.report, {{"--model", options.model.model},
                                 {"--trace", options.observe.trace},
                                 {"--limits", options.limits},
                                 {"--requests", options.model.requests},
                                 {"--force-from", options.model.force_from}});
  const Result result = result_of(options, command_line_of("run", args));
  const std::string& trace = options.observe.trace;
  const NextSteps steps{.serves = options.modes.empty(),
                        .trace = trace,
                        .kept = !trace.empty() && keep_result(trace, result)};
  put(document_of(result, steps, options.report.detail), options.report);
  return exit_status(result);
}

}  // namespace lockstep
