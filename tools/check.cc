// lockstep check: a run held to a kept baseline, for continuous integration.
#include "kernels/base/check.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "src/check/check_report.h"
#include "src/report/output.h"
#include "src/report/render.h"
#include "src/session/provenance.h"
#include "src/session/reference_library.h"
#include "src/session/session.h"
#include "tools/options.h"

namespace lockstep {
namespace {

struct CheckCommand {
  ModelOptions model;
  ReportOptions report;
  CheckOptions check;
  std::vector<std::string> faults;
  std::string limits;
  RoundingOptions rounding;
  std::string annotate;  // "github"; empty: nothing
  bool update = false;
};

void add_options(CLI::App& app, CheckCommand& options) {
  add_model_options(app, options.model);
  app.add_option("--baseline", options.check.path, "what the run is held to; --update makes it")
      ->type_name("FILE.json")
      ->required();
  CLI::Option* update = app.add_flag("--update", options.update,
                                     "make this run the baseline, if it is clean (after a change "
                                     "that is meant: review the difference)");
  app.add_option("--max-drift", options.check.max_drift,
                 "a note says which op class comes this many times nearer to a limit (1.5)")
      ->type_name("X");
  add_fault_option(app, options.faults);
  app.get_option("--fault")->excludes(update);
  add_limits_option(app, options.limits);
  app.get_option("--limits")
      ->description("with --update: limits of lockstep calibrate, which the baseline keeps")
      ->needs(update);
  add_rounding_options(app, options.rounding);
  add_choice(app, "--annotate", options.annotate, {"github"},
             "say failures and notes on stderr as GitHub shows them beside a change");
  add_result_options(app, options.report);
}

// The baseline is read before the engine runs, so that one of other requests or another model is
// refused at once.
CheckResult check_or_update(const CheckCommand& options,
                            const std::vector<std::string>& command_line) {
  check(options.update || std::filesystem::exists(options.check.path),
        "--baseline {} is not there: make it with --update, from a build that you trust",
        options.check.path);
  check(options.check.max_drift >= 1, "--max-drift wants a factor of at least 1, found {}",
        options.check.max_drift);
  const Session session = open_session(options.model);
  std::vector<FaultRequest> faults;
  for (const std::string& text : options.faults) faults.push_back(parse_fault(text));
  JudgeOptions judge{.limits = limits_of(options.limits)};
  ask_for(options.rounding, judge);
  const Baseline baseline = options.update
                                ? Baseline{}
                                : read_baseline_for(options.check.path, session.checkpoint,
                                                    session.engine.dtype, session.requests);
  Progress progress(options.report.detail);
  JudgedRun run{.checkpoint = session.checkpoint,
                .reference = open_reference(),
                .engine = session.engine,
                .ops = session.ops,
                .user_op_calls = session.user_op_calls.get(),
                .requests = session.requests,
                .faults = faults,
                .judge = std::move(judge),
                .provenance = provenance_of(session, command_line),
                .progress = [&](const std::string& line) { progress.show(line); }};
  CheckResult result = options.update ? update_baseline(std::move(run), options.check)
                                      : check_against(baseline, std::move(run), options.check);
  for (RequestResult& request : result.run.requests) request.text = session.text_of(request.tokens);
  return result;
}

// GitHub shows the file of that name on the page of the job.
void summarise_for_github(const Document& document) {
  const char* path = std::getenv("GITHUB_STEP_SUMMARY");
  if (path != nullptr && *path != '\0') append_file(path, render_markdown(document));
}

}  // namespace

int check_command(Args args) {
  CLI::App app{
      "Run requests as `lockstep run` does, decoding the tokens of a baseline that was kept, and\n"
      "fail if an op introduces an error, if numbers are newly not finite, or if less is looked\n"
      "at than in the baseline. Other bits, tokens at near ties and another machine are notes.\n"
      "Exit status: 0 pass, 1 fail, 2 trouble or inconclusive.",
      "lockstep check"};
  CheckCommand options;
  add_options(app, options);
  if (!parse(app, args,
             "  lockstep check --model Qwen3-0.6B --requests ci.jsonl --baseline ci.json --update\n"
             "  lockstep check --model Qwen3-0.6B --requests ci.jsonl --baseline ci.json\n"
             "  lockstep check --model Qwen3-0.6B --requests ci.jsonl --baseline ci.json "
             "--junit tests.xml --annotate github\n"))
    return 0;
  const std::string& baseline = options.check.path;
  const std::vector<NamedFile> others =
      checked_files(options.model, {{"--limits", options.limits}, {"--baseline", baseline}});
  if (options.update) check_output({"--baseline", baseline}, others);
  check_outputs(options.report, others);
  const CheckResult result = check_or_update(options, command_line_of("check", args));
  const Document document = document_of(result);
  if (!options.annotate.empty()) fmt::print(stderr, "{}", annotations_of(result));
  put(document, options.report);
  summarise_for_github(document);
  return exit_status(result);
}

}  // namespace lockstep
