// lockstep points: the table of points.
#include "probes/points.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "tools/options.h"

namespace lockstep {
namespace {

Table table_of_points() {
  Table table{{"point", "of", "axes", "op", "reads", "held to"}, {}};
  for (const Point& p : kPoints) {
    std::string of = p.per_layer ? "layer" : "model";
    if (!p.models.empty()) of += fmt::format(" {}", p.models);
    table.rows.push_back({std::string(p.name), of, std::string(p.shape), name_of(p.op),
                          std::string(p.reads.empty() ? "tokens" : p.reads),
                          std::string(name_of(p.node_class))});
  }
  return table;
}

}  // namespace

int points_command(Args args) {
  CLI::App app{
      "List the points: the places in a model where a tensor can be seen, in the order in which\n"
      "the model computes them. Their names are the same in options, traces and verdicts.\n"
      "\"stream\" is the residual stream that enters the layer. \"in shares\" are executors that "
      "cut\n"
      "attention: attn.partial is normalised, attn.lse a natural logarithm, and both are fp32.",
      "lockstep points"};
  std::string format = "table";
  add_format_option(app, format);
  if (!parse(app, args,
             "  lockstep points\n"
             "  lockstep points --format json\n"))
    return 0;
  print(text_of(table_of_points(), format));
  return 0;
}

}  // namespace lockstep
