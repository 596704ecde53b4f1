// lockstep judge: the verdict on a saved trace.
#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "src/report/report.h"
#include "src/session/judged_trace.h"
#include "src/session/kept_result.h"
#include "tools/options.h"

namespace lockstep {

int judge_command(Args args) {
  CLI::App app{
      "Judge a saved trace: each op against the exact result on the trace's own inputs. Needs the\n"
      "checkpoint that the trace was made with, and the tensors (--keep full): a node whose "
      "inputs\n"
      "were not kept is inconclusive. A verdict on all of the trace is kept in it, for inspect and "
      "report.\nExit status: 0 clean, 1 diverged, 2 trouble or inconclusive.",
      "lockstep judge"};
  bool fail_fast = false, error_budget = false;
  std::string path, model, limits, accumulator, pairs, rows;
  RoundingOptions rounding;
  ObserveOptions observe;
  ReportOptions report;
  app.add_option("TRACE", path, "a trace: X.trace or X.h5")->type_name("TRACE")->required();
  add_model_folder(app, model);
  add_selection_options(app, observe);
  add_limits_option(app, limits);
  add_rounding_options(app, rounding);
  add_accumulator_option(app, accumulator);
  add_rope_pairs_option(app, pairs);
  add_judging_options(app, fail_fast, error_budget, rows);
  add_result_options(app, report);
  if (!parse(app, args,
             "  lockstep judge once.trace --model Qwen3-0.6B\n"
             "  lockstep judge once.trace --model Qwen3-0.6B --layers 3 --json result.json\n"
             "  lockstep judge once.trace --model Qwen3-0.6B --error-budget\n"
             "  lockstep judge theirs.h5 --model Qwen3-0.6B --schema vllm\n"))
    return 0;
  check_outputs(report, {{"TRACE", path}, {"--model", model}, {"--limits", limits}});
  JudgeOptions options{.selection = observe.selection(),
                       .rows = rows_to_judge(rows, error_budget ? "--error-budget" : ""),
                       .limits = limits_of(limits),
                       .accumulator = accumulator_of(accumulator),
                       .fail_fast = fail_fast,
                       .error_budget = error_budget};
  ask_for(rounding, options);
  const Checkpoint checkpoint = Checkpoint::open(model);
  const Result result = judge_trace(path, checkpoint, options, report.detail, pairs);
  // A verdict on a part of the trace, or under a contract that it does not declare, is none on the
  // trace, and one that could not be given takes the place of none: a run that kept digests alone
  // was judged as it ran.
  const bool whole = options.selection.is_everything() && options.rows.all() &&
                     !options.fail_fast && rounding.asks_for_nothing() && accumulator.empty() &&
                     pairs.empty();
  const bool kept =
      whole && result.verdict != RunVerdict::inconclusive && keep_result(path, result);
  put(document_of(result, {.trace = path, .kept = kept}, report.detail), report);
  return exit_status(result);
}

}  // namespace lockstep
