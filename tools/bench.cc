// lockstep bench: what this machine can do, and how much of it the engine uses.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <thread>

#include "src/bench/cpu_bench.h"
#include "src/bench/device_bench.h"
#include "src/bench/device_roofs.h"
#include "src/bench/judging_bench.h"
#include "src/bench/shapes.h"
#include "src/bench/synthetic.h"
#include "src/report/output.h"
#include "src/session/device.h"
#include "tools/options.h"

namespace lockstep {
namespace {

// The figures that `measure` returns of the shapes of that name, each with its own checkpoint,
// which is gone before the next is made.
template <typename Measure>
std::vector<Figure> measure_shapes(const std::string& name, Measure measure) {
  Progress progress;
  std::vector<Figure> figures;
  for (const BenchShape& shape : bench_shapes()) {
    if (name != shape.name && (name != "all" || shape.large)) continue;
    const auto show = [&](const char* what) {
      progress.show(fmt::format("{}: {}", shape.name, what));
    };
    show("making weights");
    const Checkpoint checkpoint = synthetic_checkpoint(shape.config);
    std::ranges::move(measure(shape.name, checkpoint, show), std::back_inserter(figures));
  }
  return figures;
}

// The figures of the roofs are known when all else is measured, and are said first.
std::vector<Figure> after_roofs(std::vector<Figure> roofs, const std::vector<Figure>& figures) {
  roofs.insert(roofs.end(), figures.begin(), figures.end());
  return roofs;
}

std::vector<Figure> measure_judging(const std::string& name, Device device, int threads) {
  return measure_shapes(name, [&](const char* shape, const Checkpoint& checkpoint, auto show) {
    show("judging");
    return time_judging(checkpoint, device, threads).figures(shape);
  });
}

std::vector<Figure> measure_on_cpu(const std::string& name, int threads) {
  CpuRoofs roofs(threads);
  const std::vector<Figure> figures =
      measure_shapes(name, [&](const char* shape, const Checkpoint& checkpoint, auto show) {
        return measure_cpu(shape, checkpoint, threads, roofs, show);
      });
  return after_roofs(roofs.figures(), figures);
}

std::vector<Figure> measure_on_device(const std::string& name, Device device) {
  DeviceRoofs roofs(device);
  const std::vector<Figure> figures =
      measure_shapes(name, [&](const char* shape, const Checkpoint& checkpoint, auto show) {
        return measure_device(shape, checkpoint, roofs, show);
      });
  return after_roofs(roofs.figures(), figures);
}

}  // namespace

int bench_command(Args args) {
  CLI::App app{
      "Measure how fast the engine is on this machine, as shares of what memory and CPU can give.\n"
      "Weights are random, in the shape of a published model. Every figure is the minimum, median\n"
      "and maximum of repeats. A share is of the median, against what the machine gave just "
      "before\n"
      "and after; on a machine that does other work too, repeat until it holds still.",
      "lockstep bench"};
  std::string shape = "all", format = "table", device = "cpu";
  int threads = 0;
  bool judging = false;
  std::vector<std::string> shapes = {"all"};
  for (const BenchShape& known : bench_shapes()) shapes.emplace_back(known.name);
  add_choice(app, "--shape", shape, shapes,
             "which model's shape (all but the last one, whose weights take 16 GB of TMPDIR)");
  add_threads_option(app, threads);
  add_device_option(app, device);
  app.add_flag("--judging", judging, "measure what judging costs instead");
  add_format_option(app, format);
  if (!parse(app, args,
             "  lockstep bench\n"
             "  lockstep bench --device cuda --shape qwen3-0.6b\n"
             "  lockstep bench --judging --device cuda --shape qwen3-0.6b\n"
             "  lockstep bench --shape qwen3-0.6b --threads 1 --format json\n"))
    return 0;
  const Device opened = open_device(device);
  if (threads == 0) threads = machine_threads();
  const std::vector<Figure> figures = judging ? measure_judging(shape, opened, threads)
                                      : opened == Device::cpu ? measure_on_cpu(shape, threads)
                                                              : measure_on_device(shape, opened);
  print(text_of(table_of(figures), format));
  return 0;
}

}  // namespace lockstep
