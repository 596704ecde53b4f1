// lockstep run: the main job. The engine beside the reference, every node judged as it goes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "src/report/report.h"
#include "src/session/confirm.h"
#include "src/session/judged_run.h"
#include "src/session/modes.h"
#include "src/session/provenance.h"
#include "src/session/reference_library.h"
#include "src/session/session.h"
#include "tools/options.h"

namespace lockstep {
namespace {

struct RunOptions {
  ModelOptions model;
  ObserveOptions observe;
  ReportOptions report;
  std::vector<std::string> faults;
  std::string limits, schema, accumulator;
  bool no_audit = false, confirm = false;
  std::string modes;  // empty: beside the reference
};

std::vector<FaultRequest> faults_of(const RunOptions& options) {
  std::vector<FaultRequest> faults;
  for (const std::string& text : options.faults) faults.push_back(parse_fault(text));
  return faults;
}

// The engine beside the reference.
Result run(const RunOptions& options, Session& session, Progress& progress,
           const std::map<std::string, std::string>& provenance) {
  // Bad options are said first: opening the reference takes a while, and a build may have none.
  const std::vector<FaultRequest> faults = faults_of(options);
  const JudgeOptions judge{.selection = selection_of(options.observe),
                           .limits = limits_of(options.limits),
                           .contracts = contracts_of(options.schema),
                           .accumulator = accumulator_of(options.accumulator)};
  judge.selection.check_layers(static_cast<int>(session.checkpoint.config().layers));
  const auto before = record_before_of(options.observe, options.model, session.engine);
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
                      .progress = [&](int64_t done, int64_t total) {
                        progress.show(fmt::format("{} of {} tokens judged", done, total));
                      }};
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
                    .faults = faults_of(options),
                    .modes = modes_from(options.modes),
                    .ops = session.ops,
                    .provenance = provenance,
                    .progress = [&](std::string_view mode) {
                      progress.show(fmt::format("serving: {}", mode));
                    }});
}

Result result_of(const RunOptions& options, const std::vector<std::string>& command_line) {
  Session session = open_session(options.model);
  const auto provenance =
      provenance_of(session.checkpoint, session.engine, session.requests, command_line);
  Progress progress;
  Result result =
      (options.modes.empty() ? run : run_in_modes)(options, session, progress, provenance);
  for (RequestResult& request : result.requests) request.text = session.text_of(request.tokens);
  if (exit_status(result) != 0) return result;
  for (const FaultRequest& fault : faults_of(options))
    result.notes.push_back(fmt::format("nothing shows the seeded {}, which needs {}", fault.name,
                                       fault_of(fault).needs));
  return result;
}

std::string modes_help() {
  std::string names;
  for (const Mode& mode : modes()) names += fmt::format("\n{}: {}", mode.name, mode.says);
  return "no reference: serve whole prompts, then in these ways, and compare op by op on equal "
         "inputs" +
         names;
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
  add_limits_option(app, options.limits);
  add_schema_option(app, options.schema);
  add_accumulator_option(app, options.accumulator);
  app.add_flag("--no-audit", options.no_audit, "do not check what is read from the K/V cache");
  app.add_flag("--confirm", options.confirm,
               "run again with what was found wrong put right, all of it and all but one, and "
               "compute the worst elements a second time, by another hand than the oracle's");
  CLI::Option* modes = app.add_option("--modes", options.modes, modes_help());
  modes->type_name("NAME,...|all");
  for (const char* of_reference :
       {"--keep", "--trace", "--record-before", "--points", "--layers", "--positions", "--no-audit",
        "--confirm", "--limits", "--schema", "--accumulator"})
    modes->excludes(app.get_option(of_reference));
  add_report_options(app, options.report);
  if (!parse(app, args,
             "  lockstep run --model Qwen3-0.6B --prompt 'To be, or not to be'\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --trace once.trace --keep full\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --fault rope-interleaved@layer=3\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --modes all\n"))
    return 0;
  check_output({"--json", options.report.json}, {{"--model", options.model.model},
                                                 {"--trace", options.observe.trace},
                                                 {"--limits", options.limits},
                                                 {"--requests", options.model.requests}});
  const Result result = result_of(options, command_line_of("run", args));
  put(document_of(result), options.report);
  return exit_status(result);
}

}  // namespace lockstep
