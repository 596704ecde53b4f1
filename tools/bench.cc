// lockstep bench: what this machine can do, and how much of it the engine uses.
#include <CLI/CLI.hpp>

#include "src/bench/measure.h"
#include "src/bench/shapes.h"
#include "src/help/number_check.h"
#include "src/report/output.h"
#include "src/session/device.h"
#include "tools/options.h"

namespace lockstep {

int bench_command(Args args) {
  CLI::App app{
      "Measure how fast the engine is on this machine, as shares of what memory and CPU can give.\n"
      "Weights are random, in the shape of a published model. Every figure is the minimum, median\n"
      "and maximum of repeats. A share is of the median, against what the machine gave just "
      "before\n"
      "and after; on a machine that does other work too, repeat until it holds still.",
      "lockstep bench"};
  std::string shape = "all", format = "table", device = "cpu";
  int threads = 0, ranks = 1;
  bool judging = false;
  std::vector<std::string> shapes = {"all"};
  for (const BenchShape& known : bench_shapes()) shapes.emplace_back(known.name);
  add_choice(app, "--shape", shape, shapes,
             "which model's shape (all but the last one, whose weights take 16 GB of TMPDIR)");
  add_threads_option(app, threads);
  add_device_option(app, device);
  app.add_flag("--judging", judging, "measure what judging costs instead");
  app.add_option("--tp", ranks, "share one shape among that many ranks, beside one rank")
      ->type_name("N")
      ->check(whole_number(2, 64))
      ->excludes("--judging")
      ->excludes("--threads");
  add_format_option(app, format);
  if (!parse(app, args,
             "  lockstep bench\n"
             "  lockstep bench --device cuda --shape qwen3-0.6b\n"
             "  lockstep bench --judging --device cuda --shape qwen3-0.6b\n"
             "  lockstep bench --tp 2 --device cuda --shape qwen3-8b\n"
             "  lockstep bench --shape qwen3-0.6b --threads 1 --format json\n"))
    return 0;
  const auto show = [&](const auto& figures) { print(text_of(table_of(figures), format)); };
  if (ranks > 1) return measure_over_ranks(shape, device, ranks, show);
  show(measure(shape, open_device(device), threads, judging));
  return 0;
}

}  // namespace lockstep
