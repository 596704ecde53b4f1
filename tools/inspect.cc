// lockstep inspect: what is in a trace.
#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "src/report/trace_report.h"
#include "tools/options.h"

namespace lockstep {

int inspect_command(Args args) {
  CLI::App app{
      "Show what is in a trace. Without a selection: where it comes from, its requests, and a "
      "line\n"
      "for every place. With one: a line for every tensor that has selected rows, how their\n"
      "magnitudes are spread, and the largest numbers. Rows are written request:position.",
      "lockstep inspect"};
  InspectOptions options;
  app.add_option("TRACE", options.path, "trace to look into")->type_name("TRACE")->required();
  add_selection_options(app, options.points, options.layers, options.positions);
  app.add_option("--requests,--request", options.requests, "look at these requests only (all)")
      ->type_name("0,3-5");
  app.add_flag("--values", options.values, "print every number of the selected rows");
  add_format_option(app, options.format);
  if (!parse(app, args,
             "  lockstep inspect a.trace\n"
             "  lockstep inspect a.trace --points 'attn.*' --layers 2 --requests 0\n"
             "  lockstep inspect a.trace --points attn.q --layers 2 --positions 17 --values\n"))
    return 0;
  const std::unique_ptr<TraceReader> trace = open_trace(options.path);
  print(text_of(inspect(*trace, options), options.format));
  return trace->complete() ? 0 : 2;
}

}  // namespace lockstep
