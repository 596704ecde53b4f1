// lockstep diff: two traces against each other; with a checkpoint, each is judged too.
#include "src/diff/diff.h"

#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "src/report/report.h"
#include "src/session/judged_trace.h"
#include "tools/options.h"

namespace lockstep {
namespace {

// Only the oracle can tell which of two traces is wrong.
void judge_both(DiffResult& result, const std::string& model, const std::string& a,
                const std::string& b, const Selection& selection) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  std::vector<DiffResult::Judgement> all;
  for (const std::string& path : {a, b}) {
    const Result judged = judge_trace(path, checkpoint, {.selection = selection});
    DiffResult::Judgement& own = all.emplace_back(
        DiffResult::Judgement{.trace = path, .verdict = judged.verdict, .story = judged.story});
    if (judged.first) own.first = judged.first->node.place;
    own.contracts = judged.scope.contracts;
  }
  put_judgements(result, std::move(all));
}

}  // namespace

int diff_command(Args args) {
  CLI::App app{
      "Compare two traces: first what they are runs of, then bits, then numbers. Rows are paired "
      "by\n"
      "request, position, layer and point, so other batches, chunks or pages make no difference;\n"
      "requests by number, or by their tokens where these differ. Names the first place that "
      "noise\n"
      "does not explain: a suspect, for only a judgement knows which trace is wrong. With --model\n"
      "both are judged, each under its own contract, which needs the tensors (--keep full).\n"
      "Exit status: 0 identical or noise, 1 different, 2 trouble, or it cannot tell.",
      "lockstep diff"};
  std::string a, b, model;
  ObserveOptions observe;
  ReportOptions report;
  app.add_option("A", a, "the trace to compare with")->type_name("TRACE")->required();
  app.add_option("B", b, "the trace to compare")->type_name("TRACE")->required();
  begin_group(app, "Model");
  app.add_option("-m,--model", model, "judge both traces against this checkpoint")
      ->type_name("DIR");
  add_selection_options(app, observe);
  add_result_options(app, report);
  if (!parse(app, args,
             "  lockstep diff before.trace after.trace\n"
             "  lockstep diff before.trace after.trace --points 'attn.*' --layers 0-3\n"
             "  lockstep diff before.trace after.trace --model Qwen3-0.6B\n"))
    return 0;
  check_outputs(report, {{"A", a}, {"B", b}, {"--model", model}});
  const Selection selection = observe.selection();
  DiffResult result = diff(*open_trace(a), *open_trace(b), selection);
  if (!model.empty()) judge_both(result, model, a, b, selection);
  result.trace_a = a, result.trace_b = b;
  put(document_of(result), report);
  return exit_status(result);
}

}  // namespace lockstep
