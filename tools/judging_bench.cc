#include "tools/judging_bench.h"

#include <chrono>

#include "kernels/check.h"
#include "src/engine/engine.h"
#include "src/judge/judge.h"
#include "tools/reference_library.h"

namespace lockstep {
namespace {

constexpr int64_t kPrompt = 8;
constexpr int64_t kDecodes = 6;  // passes; the first warms up and does not count

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

JudgingTimes time_judging(const Checkpoint& checkpoint, int threads) {
  Request request{.max_new = kDecodes + 1};
  for (int64_t i = 0; i < kPrompt; ++i)
    request.prompt.push_back(static_cast<int32_t>((i * 7919 + 13) % checkpoint.config().vocab));
  const EngineOptions options{
      .dtype = DType::bf16, .pages = pages_for({request}, 16), .threads = threads};
  Engine engine(checkpoint, cpu_ops(), options);
  engine.submit(request);
  std::vector<Pass> passes;
  Recorder recorder({}, false, [&](Pass pass) { passes.push_back(std::move(pass)); });
  Probe probe(&recorder);
  while (engine.step(probe)) check(probe.failure().empty(), "{}", probe.failure());

  const ReferenceOptions reference{.dtype = DType::bf16, .threads = threads};
  const auto oracle = open_reference().oracle(checkpoint, reference);
  const auto model = open_reference().model(checkpoint, reference, DType::f64);
  Judge judge({.graph = engine.model().graph(), .dtype = DType::bf16}, *oracle, nullptr, nullptr,
              {});
  JudgingTimes times;
  Probe off;
  for (size_t i = 0; i < passes.size(); ++i) {
    const double judged = seconds_of([&] { judge.judge(passes[i]); });
    const double run = seconds_of([&] { model->run(passes[i].info, off); });
    if (i < 2) continue;  // the prompt and the warm-up
    times.judge.push_back(judged);
    times.model.push_back(run);
  }
  const Result result = judge.finish({}, true);
  check(result.verdict == "clean",
        "bench wants a clean run to time the judge on, found one that is {}: {}", result.verdict,
        result.story);
  return times;
}

}  // namespace lockstep
