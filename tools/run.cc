// lockstep run: the main job. The engine beside the reference, every node judged as it goes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "src/judge/report.h"
#include "tools/judged_run.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/provenance.h"
#include "tools/reference_library.h"
#include "tools/session.h"

namespace lockstep {
namespace {

struct RunOptions {
  ModelOptions model;
  ObserveOptions observe;
  ReportOptions report;
  std::vector<std::string> faults;
  bool audit = true;
};

Result run(const RunOptions& options, const std::vector<std::string>& command_line) {
  const Session session = open_session(options.model);
  std::vector<FaultRequest> faults;
  for (const std::string& text : options.faults) faults.push_back(parse_fault(text));
  const Selection selection = selection_of(options.observe);
  Progress progress;
  progress.show("opening the reference");
  Result result = judge_run({.checkpoint = session.checkpoint,
                             .reference = open_reference(),
                             .engine = session.engine,
                             .requests = session.requests,
                             .faults = faults,
                             .judge = {.selection = selection},
                             .audit = options.audit,
                             .trace = options.observe.trace,
                             .keep = keep_from(options.observe.keep),
                             .provenance = provenance_of(session.checkpoint, session.engine,
                                                         session.requests, command_line),
                             .progress = [&](int64_t done, int64_t total) {
                               progress.show(fmt::format("{} of {} tokens judged", done, total));
                             }});
  for (RequestResult& request : result.requests) request.text = session.text_of(request.tokens);
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
  app.add_flag("!--no-audit", options.audit, "do not check what is read from the K/V cache");
  add_report_options(app, options.report);
  if (!parse(
          app, args,
          "  lockstep run --model Qwen3-0.6B --prompt 'To be, or not to be'\n"
          "  lockstep run --model Qwen3-0.6B --prompt 'Once' --trace once.trace --keep full\n"
          "  lockstep run --model Qwen3-0.6B --prompt 'Once' --fault rope-interleaved@layer=3\n"))
    return 0;
  const Result result = run(options, command_line_of("run", args));
  put_result(result, options.report);
  return exit_status(result);
}

}  // namespace lockstep
