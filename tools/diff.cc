// lockstep diff: two traces against each other, without a checkpoint.
#include "src/judge/diff.h"

#include <CLI/CLI.hpp>

#include "tools/options.h"
#include "tools/output.h"

namespace lockstep {

int diff_command(Args args) {
  CLI::App app{
      "Compare two traces: first what they are runs of, then bits, then numbers. Rows are paired "
      "by\n"
      "request, position, layer and point, so other batches, chunks or pages make no difference.\n"
      "Names the first place that differs and the first that noise does not explain: a suspect, "
      "for\n"
      "only `lockstep judge` knows which trace is wrong.\n"
      "Exit status: 0 identical or noise, 1 different, 2 trouble or inconclusive.",
      "lockstep diff"};
  std::string a, b;
  ObserveOptions observe;
  ReportOptions report;
  app.add_option("A", a, "the trace to compare with")->type_name("")->required();
  app.add_option("B", b, "the trace to compare")->type_name("")->required();
  add_selection_options(app, observe);
  add_report_options(app, report);
  if (!parse(app, args,
             "  lockstep diff before.trace after.trace\n"
             "  lockstep diff before.trace after.trace --points 'attn.*' --layers 0-3\n"))
    return 0;
  const DiffOptions options{.selection = selection_of(observe)};
  const DiffResult result = diff(*open_trace(a), *open_trace(b), options);
  put_result(result, report);
  return exit_status(result);
}

}  // namespace lockstep
