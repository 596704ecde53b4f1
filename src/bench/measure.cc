// The figures of `lockstep bench`: each published shape with random weights, one after another, so
// that one model is in memory at a time, and the roofs of the machine beside them.
#include "src/bench/measure.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "src/bench/cpu_bench.h"
#include "src/bench/device_bench.h"
#include "src/bench/device_roofs.h"
#include "src/bench/judging_bench.h"
#include "src/bench/rank_bench.h"
#include "src/bench/shapes.h"
#include "src/bench/synthetic.h"
#include "src/report/output.h"
#include "src/session/device.h"
#include "src/session/ranked_run.h"

namespace lockstep {
namespace {

// The figures that `measure` returns of the shapes of that name, each with its own checkpoint,
// which is gone before the next is made.
template <typename Measure>
std::vector<Figure> measure_shapes(const std::string& name, Measure measure) {
  Progress progress;
  std::vector<Figure> figures;
  for (const BenchShape& shape : bench_shapes()) {
    // "all" leaves out large shapes, which must be asked for by name.
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

std::vector<Figure> shapes_judging(const std::string& name, Device device, int threads) {
  return measure_shapes(name, [&](const char* shape, const Checkpoint& checkpoint, auto show) {
    show("judging");
    return time_judging(checkpoint, device, threads).figures(shape);
  });
}

std::vector<Figure> shapes_on_cpu(const std::string& name, int threads) {
  CpuRoofs roofs(threads);
  const std::vector<Figure> figures =
      measure_shapes(name, [&](const char* shape, const Checkpoint& checkpoint, auto show) {
        return measure_cpu(shape, checkpoint, threads, roofs, show);
      });
  return after_roofs(roofs.figures(), figures);
}

std::vector<Figure> shapes_on_device(const std::string& name, Device device) {
  DeviceRoofs roofs(device);
  const std::vector<Figure> figures =
      measure_shapes(name, [&](const char* shape, const Checkpoint& checkpoint, auto show) {
        return measure_device(shape, checkpoint, roofs, show);
      });
  return after_roofs(roofs.figures(), figures);
}

}  // namespace

std::vector<Figure> measure(const std::string& shape, Device device, int threads, bool judging) {
  if (threads == 0) threads = machine_threads();
  if (judging) return shapes_judging(shape, device, threads);
  return device == Device::cpu ? shapes_on_cpu(shape, threads) : shapes_on_device(shape, device);
}

// The weights are made before the ranks are, which then have one copy of them.
int measure_over_ranks(const std::string& shape, const std::string& device, int ranks,
                       const std::function<void(const std::vector<Figure>&)>& show) {
  const auto shapes = bench_shapes();
  const auto known =
      std::ranges::find_if(shapes, [&](const BenchShape& one) { return shape == one.name; });
  check(known != shapes.end(), "bench --tp measures one shape, found --shape {}: name one", shape);
  const Checkpoint checkpoint = synthetic_checkpoint(known->config);
  return run_ranks(ranks, std::chrono::seconds(20), [&](RankSeat& seat) {
    const Device own = open_device(device_of_rank(device, seat));
    const std::vector<Figure> figures = measure_rank(shape, checkpoint, own, seat);
    if (seat.rank() == 0) show(figures);
    return 0;
  });
}

}  // namespace lockstep
