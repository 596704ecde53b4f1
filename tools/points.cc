// lockstep points: the table of points.
#include "probes/points.h"

#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "tools/options.h"

namespace lockstep {
namespace {

Table table_of_points() {
  constexpr const char* kClasses[] = {"exact", "elementwise", "reduction"};
  constexpr const char* kPresences[] = {"layer", "layer, with QK-norm", "layer without experts",
                                        "layer with experts", "model"};
  Table table{{"point", "of", "op", "reads", "held to", "axes"}, {}};
  for (const Point& p : kPoints) {
    std::string reads(p.inputs[0].empty() ? "tokens" : p.inputs[0]);
    for (size_t i = 1; i < p.inputs.size() && !p.inputs[i].empty(); ++i)
      reads += ", " + std::string(p.inputs[i]);
    table.rows.push_back(
        {std::string(p.name), p.per_layer ? kPresences[static_cast<size_t>(p.presence)] : "model",
         name_of(p.op), reads, std::string(kClasses[static_cast<size_t>(p.node_class)]),
         std::string(p.shape)});
  }
  return table;
}

}  // namespace

int points_command(Args args) {
  CLI::App app{
      "List the points: the places in a model where a tensor can be seen, in the order in which "
      "the\n"
      "model computes them. Their names are the same in options, traces and verdicts. \"stream\" "
      "is\n"
      "the residual stream that enters the layer.",
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
