// lockstep faults: the bugs that --fault can seed.
#include "src/faults/faults.h"

#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "tools/options.h"

namespace lockstep {

int faults_command(Args args) {
  CLI::App app{
      "List the bugs that `lockstep run --fault NAME@layer=L` can seed into the engine, the first\n"
      "point that shows each, and what a run must have for it to be seen.",
      "lockstep faults"};
  std::string format = "table";
  add_format_option(app, format);
  if (!parse(app, args, "  lockstep faults\n  lockstep faults --format json\n")) return 0;
  Table table{{"fault", "first seen at", "size", "layers", "what is wrong", "needs"}, {}};
  for (const Fault& fault : faults())
    table.rows.push_back({std::string(fault.name), std::string(fault.point),
                          fault.sizes[0] == 0 ? Cell(std::string("-")) : Cell(fault.sizes[0]),
                          fault.one_layer ? "one or all" : "all", std::string(fault.says),
                          std::string(fault.needs)});
  print(text_of(table, format));
  return 0;
}

}  // namespace lockstep
