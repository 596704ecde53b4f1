// Each size is a run of its own: an engine that serves, and a judge that takes each pass as it has
// ended, so that no more than one pass is held however large it is. Six passes of a size are alike:
// three are timed, and the other three measure the peak of memory, for which the allocator gives
// back to the system first what the next pass would find again. The first one warms up, and is no
// timed one.
#include "src/bench/judging_growth.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "src/bench/figures.h"
#include "src/bench/judged_passes.h"
#include "src/bench/peak_memory.h"

namespace lockstep {
namespace {

constexpr int kAlike = 6;             // passes of one size
constexpr size_t kFewestSizes = 4;    // that are measured however long they take
constexpr int64_t kLeastTokens = 32;  // of a prompt, or of context; fewer where few are possible
constexpr int64_t kLayersPrompt = 64;
constexpr int64_t kLeastRequests = 4;
constexpr int64_t kMostRequests = 512;  // in a pass
constexpr int64_t kRequestPrompt = 16;

// The costs of alike passes.
struct Costs {
  std::vector<double> seconds, bytes;

  void judge(Judge& judge, const Pass& pass) {
    if ((seconds.size() + bytes.size()) % 2 == 1) {
      seconds.push_back(seconds_of([&] { judge.judge(pass); }));
      return;
    }
    PeakMemory::reset();
    const double before = PeakMemory::bytes();
    judge.judge(pass);
    bytes.push_back(PeakMemory::bytes() - before);
  }
};

// The model of the first layers of another, whose weights it borrows.
Checkpoint first_layers(const Checkpoint& whole, int64_t layers) {
  ModelConfig config = whole.config();
  config.layers = layers;
  std::erase_if(config.experts.layers, [&](int layer) { return layer >= layers; });
  if (std::ssize(config.window) > layers) config.window.resize(layers);
  std::map<std::string, TensorView> tensors;
  for (const auto& [name, shape] : needed_tensors(config)) tensors[name] = whole.tensor(name);
  return whole.with(std::move(config), std::move(tensors));
}

// One checkpoint whose passes are judged.
class GrowthBench {
 public:
  GrowthBench(const Checkpoint& checkpoint, Device device, int threads)
      : checkpoint_(checkpoint),
        options_{.device = device, .dtype = DType::bf16, .threads = threads},
        model_(checkpoint, options_) {}

  // The pass of a prompt, which is judged by one judge after the other.
  Costs prompt(int64_t tokens) const {
    Costs costs;
    serve(checkpoint_, {some_request(checkpoint_.config(), tokens, 1, 0)}, options_,
          held_by(*model_.oracle), [&](const Pass& pass) {
            for (int i = 0; i < kAlike; ++i) {
              Judge judge = model_.judge(true);
              costs.judge(judge, pass);
              JudgedModel::check_clean(judge);
            }
          });
    return costs;
  }

  // Decode passes of so many requests, after prompts that do not count.
  Costs decode(int64_t requests, int64_t context) const {
    std::vector<Request> list;
    for (int64_t i = 0; i < requests; ++i)
      list.push_back(some_request(checkpoint_.config(), context, kAlike + 1, i));
    Costs costs;
    Judge judge = model_.judge(true);
    serve(checkpoint_, list, options_, held_by(*model_.oracle), [&](const Pass& pass) {
      const auto decodes = [&](const PassRow& row) { return row.row.position >= context; };
      if (std::ranges::none_of(pass.info.rows, decodes)) {
        judge.judge(pass);
        return;
      }
      check(std::ssize(pass.info.rows) == requests,
            "bench wants {} requests in a decode pass, found {}", requests, pass.info.rows.size());
      costs.judge(judge, pass);
    });
    JudgedModel::check_clean(judge);
    return costs;
  }

 private:
  const Checkpoint& checkpoint_;
  EngineOptions options_;
  JudgedModel model_;
};

// From `least` to `most`.
std::vector<int64_t> doubled(int64_t least, int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t size = least; size <= most; size *= 2) sizes.push_back(size);
  return sizes;
}

// Goes through the sizes as long as there is time.
Growth grow(std::string what, const std::vector<int64_t>& sizes, double time,
            const std::function<Costs(int64_t)>& costs_of,
            const std::function<void(const std::string&)>& show) {
  Growth growth{.what = std::move(what)};
  double spent = 0, last = 0;
  for (const int64_t size : sizes) {
    show(fmt::format("{}: {}", growth.what, size));
    Costs costs;
    const double took = seconds_of([&] { costs = costs_of(size); });
    growth.sizes.push_back(static_cast<double>(size));
    growth.seconds.push_back(median_of(costs.seconds));
    growth.bytes.push_back(median_of(costs.bytes));
    // The next one takes longer than this one by as much as this one did than the last, and twice
    // as long at least.
    const double next = took * std::max(2.0, last > 0 ? took / last : 0);
    spent += took, last = took;
    if (growth.sizes.size() >= kFewestSizes && spent + next > time) break;
  }
  return growth;
}

}  // namespace

std::vector<Growth> measure_growth(const Checkpoint& checkpoint, Device device, int threads,
                                   double seconds,
                                   const std::function<void(const std::string&)>& show) {
  const int64_t positions = checkpoint.config().max_positions, layers = checkpoint.config().layers;
  const int64_t least = std::clamp<int64_t>(positions / 16, 1, kLeastTokens);
  const int64_t prompt = std::min(kLayersPrompt, positions - 1);
  std::vector<Growth> growths;
  {
    const GrowthBench bench(checkpoint, device, threads);
    growths.push_back(grow(
        "tokens of a prompt", doubled(least, positions - 1), seconds,
        [&](int64_t tokens) { return bench.prompt(tokens); }, show));
    growths.push_back(grow(
        "requests of a decode pass", doubled(kLeastRequests, kMostRequests), seconds,
        [&](int64_t requests) { return bench.decode(requests, kRequestPrompt); }, show));
    growths.push_back(grow(
        "context of a decode pass", doubled(least, positions - kAlike - 1), seconds,
        [&](int64_t context) { return bench.decode(1, context); }, show));
  }
  std::vector<int64_t> counts = doubled(1, layers);
  if (counts.back() < layers) counts.push_back(layers);
  growths.push_back(grow(
      fmt::format("layers, for a prompt of {}", prompt), counts, seconds,
      [&](int64_t count) {
        const Checkpoint some = first_layers(checkpoint, count);
        return GrowthBench(some, device, threads).prompt(prompt);
      },
      show));
  return growths;
}

Table table_of(const std::string& shape, const std::vector<Growth>& growths) {
  Table table{{"shape", "grows", "sizes", "cost", "unit", "medians", "exponent", "error", "r2"},
              {}};
  for (const Growth& growth : growths) {
    const auto add = [&](const char* cost, const char* unit, double scale,
                         const std::vector<double>& of, const PowerFit& fit) {
      std::vector<std::string> medians;
      for (const double x : of) medians.push_back(fmt::format("{:.3g}", x * scale));
      table.rows.push_back({shape, growth.what, fmt::format("{}", fmt::join(growth.sizes, " ")),
                            std::string(cost), std::string(unit),
                            fmt::format("{}", fmt::join(medians, " ")), fit.exponent, fit.error,
                            fit.explained});
    };
    add("time", "ms", 1e3, growth.seconds, growth.of_time());
    add("memory", "MB", 1e-6, growth.bytes, growth.of_memory());
  }
  return table;
}

}  // namespace lockstep
