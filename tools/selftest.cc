// lockstep selftest: can the judge be trusted on this model? Clean runs, seeded bugs, controls.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "kernels/base/check.h"
#include "src/report/output.h"
#include "src/selftest/selftest_run.h"
#include "src/session/reference_library.h"
#include "src/session/requests.h"
#include "src/session/session.h"
#include "tools/options.h"

namespace lockstep {
namespace {

// By default each dtype is tested, since the budgets of each are others; --quick takes the
// checkpoint's own alone.
std::vector<DType> dtypes_of(const std::string& dtype, bool quick, const ModelConfig& config) {
  if (dtype != "auto") return {dtype_from(dtype)};
  if (quick) return {config.dtype};
  return {DType::f32, DType::bf16, DType::f16};
}

// The prompts as token ids. Throws Error when text is given to a checkpoint without a tokenizer.
std::vector<std::vector<int32_t>> prompts_of(const ModelOptions& options, const Session& session) {
  std::vector<std::vector<int32_t>> prompts;
  if (options.asks_for_nothing()) return prompts;
  for (Request& request : requests_from(options, session.checkpoint.config(),
                                        session.tokenizer ? &*session.tokenizer : nullptr))
    prompts.push_back(std::move(request.prompt));
  return prompts;
}

struct SelftestOptions {
  ModelOptions model;
  bool quick = false;
  ReportOptions report;
  std::string journal, limits;
  std::vector<std::string> traces;
};

void add_selftest_options(CLI::App& app, SelftestOptions& options) {
  add_model_folder(app, options.model.model);
  add_device_option(app, options.model.device);
  add_choice(app, "--dtype", options.model.dtype, {"auto", "fp32", "bf16", "fp16"},
             "of the runs (auto: all three, with --quick the checkpoint's)");
  begin_group(app, "Runs");
  app.add_flag("--quick", options.quick,
               "a few runs of each kind, for lower bounds: two minutes, not half an hour");
  app.add_option("-p,--prompt,--prompts", options.model.prompts, "a text to use in the runs too")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  app.add_option("--clean-trace", options.traces,
                 "a trace of another engine that is known to be right: it must come out without a "
                 "finding")
      ->type_name("TRACE")
      ->allow_extra_args(false);
  app.add_option("--journal", options.journal,
                 "keep what each run came to in this file; called again, go on from there")
      ->type_name("FILE");
  add_threads_option(app, options.model.engine.threads);
  add_limits_option(app, options.limits);
  add_report_options(app, options.report);
}

}  // namespace

int selftest_command(Args args) {
  CLI::App app{
      "Measure whether the judge can be trusted on a model: runs that must come out clean, bugs\n"
      "that must be found and named, and judgements that must fail. Prints false alarms, the\n"
      "smallest error of each op that is found, in ulp, beside what must be found, the share of\n"
      "bugs found by how much they change, every miss, and what these prompts and this model\n"
      "cannot show. Exit status: 0 passed, 1 failed, 2 trouble.",
      "lockstep selftest"};
  SelftestOptions options;
  add_selftest_options(app, options);
  if (!parse(
          app, args,
          "  lockstep selftest --model Qwen3-0.6B --quick\n"
          "  lockstep selftest --model Qwen3-0.6B --journal selftest.jsonl --json selftest.json\n"))
    return 0;
  std::vector<NamedFile> others = files_read_by(options.model);
  others.insert(others.end(), {{"--journal", options.journal}, {"--limits", options.limits}});
  for (const std::string& trace : options.traces) others.push_back({"--clean-trace", trace});
  check_apart({"--journal", options.journal}, others);
  check_outputs(options.report, others);
  const Session session = open_model(options.model);
  const ModelConfig& config = session.checkpoint.config();
  Progress progress(options.report.detail);
  const SelftestRun run{.checkpoint = session.checkpoint,
                        .reference = open_reference(),
                        .plan = {.config = config,
                                 .prompts = prompts_of(options.model, session),
                                 .quick = options.quick,
                                 .device = session.engine.device,
                                 .over_ranks = true},
                        .dtypes = dtypes_of(options.model.dtype, options.quick, config),
                        .limits = limits_of(options.limits),
                        .traces = options.traces,
                        .journal = options.journal,
                        .threads = options.model.engine.threads,
                        .progress = [&](size_t done, size_t total, const std::string& name) {
                          progress.show(fmt::format("{} of {} runs: {}", done, total, name));
                        }};
  const std::vector<Selftest> tests = selftest(run);
  progress.show("");
  put(document_of(tests), options.report);
  return std::ranges::all_of(tests, &Selftest::passed) ? 0 : 1;
}

}  // namespace lockstep
