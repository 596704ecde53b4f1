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
  BenchOptions options;
  std::string format = "table", device = "cpu";
  int ranks = 1;
  std::vector<std::string> shapes = {"all"};
  for (const BenchShape& known : bench_shapes()) shapes.emplace_back(known.name);
  add_choice(app, "--shape", options.shape, shapes,
             "which model's shape (all but the last one, whose weights take 16 GB of TMPDIR)");
  app.add_option("-m,--model", options.model, "checkpoint")->type_name("DIR")->excludes("--shape");
  add_threads_option(app, options.threads);
  add_device_option(app, device);
  app.add_flag("--judging", options.judging, "measure what judging costs instead");
  app.add_flag("--growth", options.growth, "and how that grows with size")->needs("--judging");
  app.add_option("--tp", ranks, "share one shape among that many ranks, beside one rank")
      ->type_name("N")
      ->check(whole_number(2, 64))
      ->excludes("--judging", "--threads", "--model");
  add_format_option(app, format);
  if (!parse(app, args,
             "  lockstep bench\n"
             "  lockstep bench --device cuda --shape qwen3-0.6b\n"
             "  lockstep bench --judging --growth --device cuda --shape qwen3-0.6b --format json\n"
             "  lockstep bench --tp 2 --device cuda --shape qwen3-8b\n"))
    return 0;
  const auto show = [&](const Table& table) { print(text_of(table, format)); };
  if (ranks > 1) return measure_over_ranks(options.shape, device, ranks, show);
  options.device = open_device(device);
  show(measure(options));
  return 0;
}

}  // namespace lockstep
