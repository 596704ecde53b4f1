// lockstep inspect: what is in a trace.
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "src/report/trace_report.h"
#include "src/screen/screen.h"
#include "tools/options.h"
#include "traces/journal_json.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

// One pass at a time: a trace may be larger than memory.
int print_journal(TraceReader& trace) {
  print(json_of({trace.manifest(), trace.complete() ? trace.passes() : -1}, Layout::one_line));
  int64_t seq = 0;
  for (int i = 0; i < trace.passes(); ++i) {
    const Pass pass = trace.read(i, false);
    print(journal_lines(pass, seq));
    seq += std::ssize(pass.tensors);
  }
  for (const std::string& problem : trace.problems()) fmt::print(stderr, "warning: {}\n", problem);
  return trace.complete() ? 0 : 2;
}

}  // namespace

int inspect_command(Args args) {
  CLI::App app{
      "Show what is in a trace. Without a selection: where it comes from, its requests, the first\n"
      "place that is not finite, and the size of its numbers by layer and point. With one: a line\n"
      "for every tensor that has selected rows, a picture of heads by positions, how magnitudes\n"
      "are spread, and the largest numbers. Rows are written request:position. Exit status: 0; "
      "with "
      "--against 1 where the two differ; 2 trouble, or a trace that is not whole.",
      "lockstep inspect"};
  InspectOptions options;
  app.add_option("TRACE", options.path, "trace to look into")->type_name("TRACE")->required();
  add_selection_options(app, options.points, options.layers, options.positions);
  app.add_option("--requests,--request", options.requests, "look at these requests only (all)")
      ->type_name("0,3-5");
  app.add_option("--heads,--head", options.heads, "look at these heads only (all)")
      ->type_name("0,3-5");
  app.add_option("--slice", options.slice,
                 "these elements only, an index or a range an axis, the position first")
      ->type_name("'[16, 3, :8]'");
  CLI::Option* values =
      app.add_flag("--values", options.values, "print every number of what is selected");
  CLI::Option* npy = app.add_option("--npy", options.npy, "write the selected numbers of one place")
                         ->type_name("FILE");
  CLI::Option* against =
      app.add_option("--against", options.against, "compare the selected rows with another trace's")
          ->type_name("TRACE");
  CLI::Option* passes = app.add_flag("--passes", options.passes,
                                     "show the rows, page tables, slots and lengths of each pass");
  CLI::Option* provenance =
      app.add_flag("--provenance", options.provenance, "show all that is known of its origin");
  bool journal = false;
  CLI::Option* lines =
      app.add_flag("--journal", journal,
                   "print every digest as JSON lines: the manifest, and of each pass a line for it "
                   "and one for each tensor");
  // Each of these is another answer, and two of them on one screen would be none.
  for (CLI::Option* other : {values, npy, passes, provenance}) against->excludes(other);
  for (CLI::Option* other : {values, npy, provenance}) passes->excludes(other);
  for (CLI::Option* other : {values, npy}) provenance->excludes(other);
  for (CLI::Option* other : {values, npy, against, passes, provenance}) lines->excludes(other);
  add_format_option(app, options.format);
  if (!parse(app, args,
             "  lockstep inspect a.trace\n"
             "  lockstep inspect a.trace --points 'attn.*' --layers 2 --requests 0\n"
             "  lockstep inspect a.trace --points attn.q --layers 2 --positions 17 --values\n"
             "  lockstep inspect a.trace --points attn.q --layers 2 --slice '[16, 3, :8]' --npy "
             "q.npy\n"
             "  lockstep inspect a.trace --points attn.q --layers 2 --against b.trace\n"
             "  lockstep inspect a.trace --journal | head -3\n"))
    return 0;
  check(!(journal && (options.selects() || options.format != "table")),
        "--journal prints all digests as JSON lines: leave selections and --format out");
  check_output({"--npy", options.npy}, {{"TRACE", options.path}});
  options.width = screen_of(STDOUT_FILENO).width;
  const std::unique_ptr<TraceReader> trace = open_trace(options.path);
  if (journal) return print_journal(*trace);
  const Inspected inspected = inspect(*trace, options);
  put(inspected.document, {.format = options.format});
  return exit_status(inspected);
}

}  // namespace lockstep
