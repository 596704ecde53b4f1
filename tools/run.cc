// lockstep run: the main job. The engine beside the reference, every node judged as it goes.
#include "src/session/run.h"

#include <CLI/CLI.hpp>

#include "src/help/number_check.h"
#include "src/report/output.h"
#include "src/report/report.h"
#include "src/session/kept_result.h"
#include "src/session/modes.h"
#include "src/session/provenance.h"
#include "src/session/ranked_run.h"
#include "tools/options.h"

namespace lockstep {
namespace {

// --modes: a text for modes_from.
CLI::Option* add_modes_option(CLI::App& app, std::string& text) {
  begin_group(app, "Judge");
  return app.add_option("--modes,--mode", text, modes_help())->type_name("MODE,...|all");
}

int show(const Result& result, const RunOptions& options) {
  const std::string& trace = options.observe.trace;
  const NextSteps steps{.serves = options.modes.empty(),
                        .over_ranks = options.ranks > 1,
                        .trace = trace,
                        .kept = !trace.empty() && keep_result(trace, result)};
  put(document_of(result, steps, options.report.detail), options.report);
  return exit_status(result);
}

void add_rank_options(CLI::App& app, RunOptions& options) {
  app.add_option("--tp", options.ranks,
                 "share the model among that many ranks, a process each (tensor parallel)")
      ->type_name("N")
      ->check(whole_number(1, 64));
  app.add_flag("--sequence-parallel", options.sequence_parallel,
               "with --tp: share the residual stream and its norms by rows of the pass, too")
      ->needs("--tp");
  app.add_option("--rank-patience", options.rank_patience,
                 "seconds that a rank may get no further while others wait for it (20)")
      ->type_name("SECONDS")
      ->check(positive_number(1e9));
  app.add_option("--rank", options.rank,
                 "be that rank; the others are started elsewhere, with the same options (torchrun)")
      ->type_name("R")
      ->check(whole_number(0, 63));
  app.add_option("--rendezvous", options.rendezvous, "with --rank: where rank 0 listens")
      ->type_name("HOST:PORT");
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
  add_judging_options(app, options.fail_fast, options.error_budget, options.judge_rows);
  app.add_option("--judge-memory", options.judge_memory,
                 "most GB of a CUDA device's memory that the reference takes (all that is free)")
      ->type_name("GB")
      ->check(positive_number(1e5));
  app.add_flag("--no-audit", options.no_audit, "do not check what is read from the K/V cache");
  app.add_flag("--confirm", options.confirm,
               "run again with what was found wrong put right, all of it and all but one, and "
               "compute the worst elements a second time, by another hand than the oracle's");
  CLI::Option* modes = add_modes_option(app, options.modes);
  CLI::Option* determinism = add_determinism_option(app, options.determinism)->excludes(modes);
  add_limits_option(app, options.limits);
  add_rounding_options(app, options.rounding);
  add_accumulator_option(app, options.accumulator);
  // These are about a judgement beside the reference, which --modes and --determinism do without.
  for (const char* of_reference :
       {"--keep", "--trace", "--record-before", "--points", "--layers", "--positions", "--no-audit",
        "--confirm", "--fail-fast", "--error-budget", "--judge-rows", "--judge-memory", "--limits",
        "--schema", "--rounding", "--accumulator"})
    for (CLI::Option* alone : {modes, determinism}) alone->excludes(app.get_option(of_reference));
  add_rank_options(app, options);
  add_result_options(app, options.report);
  if (!parse(app, args,
             "  lockstep run --model Qwen3-0.6B --prompt 'To be, or not to be'\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --trace once.trace --keep full\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --fault rope-interleaved@layer=3\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --modes all\n"
             "  lockstep run --model Qwen3-0.6B --prompt 'Once' --determinism 3\n"))
    return 0;
  check_outputs(options.report, checked_files(options.model, {{"--trace", options.observe.trace},
                                                              {"--limits", options.limits}}));
  const std::optional<Rendezvous> elsewhere = rendezvous_of(options);
  if (options.ranks > 1) check_can_share(options);
  if (options.determinism > 0) {
    const Determinism bits = run_determinism(options, command_line_of("run", args));
    put(document_of(bits), options.report);
    return exit_status(bits);
  }
  const std::vector<std::string> line = command_line_of("run", args);
  const auto shown = [&](const Result& result) { return show(result, options); };
  return options.ranks == 1 ? shown(run(options, line))
                            : run_over_ranks(options, elsewhere, line, shown);
}

}  // namespace lockstep
