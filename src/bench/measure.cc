// The figures of `lockstep bench`: each published shape with random weights, one after another, so
// that one model is in memory at a time, and the roofs of the machine beside them.
#include "src/bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "src/bench/cpu_bench.h"
#include "src/bench/device_bench.h"
#include "src/bench/device_roofs.h"
#include "src/bench/judging_bench.h"
#include "src/bench/judging_growth.h"
#include "src/bench/rank_bench.h"
#include "src/bench/shapes.h"
#include "src/bench/synthetic.h"
#include "src/report/output.h"
#include "src/session/device.h"
#include "src/session/ranked_run.h"

namespace lockstep {
namespace {

// Each of the four things that grow has so much, and spends about half on the largest size.
constexpr double kGrowthSeconds = 20;

// Calls measure(name, checkpoint, show) for each of the shapes, whose checkpoint is gone before the
// next is made, or for the one checkpoint.
void for_each_shape(const BenchOptions& options, const auto& measure) {
  Progress progress;
  const auto show_of = [&](const std::string& name) {
    return [&progress, name](const std::string& what) {
      progress.show(fmt::format("{}: {}", name, what));
    };
  };
  if (!options.model.empty()) {
    const std::string name = std::filesystem::canonical(options.model).filename();
    measure(name, Checkpoint::open(options.model), show_of(name));
    return;
  }
  for (const BenchShape& shape : bench_shapes()) {
    // "all" leaves out large shapes, which must be asked for by name.
    if (options.shape != shape.name && (options.shape != "all" || shape.large)) continue;
    const auto show = show_of(shape.name);
    show("making weights");
    measure(std::string(shape.name), synthetic_checkpoint(shape.config), show);
  }
}

// The figures that `measure` returns of the shapes.
std::vector<Figure> measure_shapes(const BenchOptions& options, const auto& measure) {
  std::vector<Figure> figures;
  for_each_shape(options, [&](const std::string& name, const Checkpoint& checkpoint, auto show) {
    std::ranges::move(measure(name, checkpoint, show), std::back_inserter(figures));
  });
  return figures;
}

// The figures of the roofs are known when all else is measured, and are said first.
std::vector<Figure> after_roofs(std::vector<Figure> roofs, const std::vector<Figure>& figures) {
  roofs.insert(roofs.end(), figures.begin(), figures.end());
  return roofs;
}

std::vector<Figure> shapes_judging(const BenchOptions& o) {
  return measure_shapes(o, [&](const std::string& shape, const Checkpoint& checkpoint, auto show) {
    show("judging");
    return time_judging(checkpoint, o.device, o.threads).figures(shape);
  });
}

Table shapes_growing(const BenchOptions& options) {
  Table table = table_of("", std::vector<Growth>());
  for_each_shape(options, [&](const std::string& shape, const Checkpoint& checkpoint, auto show) {
    const std::vector<Growth> growths =
        measure_growth(checkpoint, options.device, options.threads, kGrowthSeconds, show);
    std::ranges::move(table_of(shape, growths).rows, std::back_inserter(table.rows));
  });
  return table;
}

std::vector<Figure> shapes_on_cpu(const BenchOptions& o) {
  CpuRoofs roofs(o.threads);
  const std::vector<Figure> figures =
      measure_shapes(o, [&](const std::string& shape, const Checkpoint& checkpoint, auto show) {
        return measure_cpu(shape, checkpoint, o.threads, roofs, show);
      });
  return after_roofs(roofs.figures(), figures);
}

std::vector<Figure> shapes_on_device(const BenchOptions& o) {
  DeviceRoofs roofs(o.device);
  const std::vector<Figure> figures =
      measure_shapes(o, [&](const std::string& shape, const Checkpoint& checkpoint, auto show) {
        return measure_device(shape, checkpoint, roofs, show);
      });
  return after_roofs(roofs.figures(), figures);
}

}  // namespace

Table measure(BenchOptions options) {
  if (options.threads == 0) options.threads = machine_threads();
  if (options.growth) return shapes_growing(options);
  if (options.judging) return table_of(shapes_judging(options));
  return table_of(options.device == Device::cpu ? shapes_on_cpu(options)
                                                : shapes_on_device(options));
}

// The weights are made before the ranks are, which then have one copy of them.
int measure_over_ranks(const std::string& shape, const std::string& device, int ranks,
                       const std::function<void(const Table&)>& show) {
  const auto shapes = bench_shapes();
  const auto known =
      std::ranges::find_if(shapes, [&](const BenchShape& one) { return shape == one.name; });
  check(known != shapes.end(), "bench --tp measures one shape, found --shape {}: name one", shape);
  const Checkpoint checkpoint = synthetic_checkpoint(known->config);
  return run_ranks(ranks, std::chrono::seconds(20), [&](RankSeat& seat) {
    const Device own = open_device(device_of_rank(device, seat));
    const std::vector<Figure> figures = measure_rank(shape, checkpoint, own, seat);
    if (seat.rank() == 0) show(table_of(figures));
    return 0;
  });
}

}  // namespace lockstep
