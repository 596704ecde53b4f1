#include "tools/judging_bench.h"

#include <chrono>

#include "kernels/check.h"
#include "src/engine/engine.h"
#include "src/judge/judge.h"
#include "tools/peak_memory.h"
#include "tools/reference_library.h"

namespace lockstep {
namespace {

constexpr int64_t kPrompt = 8;
constexpr int64_t kDecodes = 6;  // passes; the first warms up and does not count

constexpr int64_t kRows = 64;  // requests of the pass that the memory is measured on

std::vector<Pass> passes_of(Engine& engine) {
  std::vector<Pass> passes;
  Recorder recorder({}, false, [&](Pass pass) { passes.push_back(std::move(pass)); });
  Probe probe(&recorder);
  while (engine.step(probe)) check(probe.failure().empty(), "{}", probe.failure());
  return passes;
}

Request some_request(const ModelConfig& config, int64_t tokens, int64_t max_new, int64_t seed) {
  Request request{.max_new = max_new};
  for (int64_t i = 0; i < tokens; ++i)
    request.prompt.push_back(static_cast<int32_t>((i * 7919 + 13 + seed) % config.vocab));
  return request;
}

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A pass in which every request gets logits: those of a big head are the largest tensor there is.
double extra_bytes(const Checkpoint& checkpoint, Oracle& oracle, int threads) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < kRows; ++i)
    requests.push_back(some_request(checkpoint.config(), 1, 1, i));
  Engine engine(checkpoint, cpu_ops(),
                {.dtype = DType::bf16, .pages = pages_for(requests, 16), .threads = threads});
  for (const Request& request : requests) engine.submit(request);
  const std::vector<Pass> passes = passes_of(engine);
  check(passes.size() == 1, "bench wants {} requests served in one pass, found {}", kRows,
        passes.size());
  Judge judge({.graph = engine.model().graph(), .dtype = DType::bf16}, oracle, nullptr, nullptr,
              {});
  PeakMemory::reset();
  const double before = PeakMemory::bytes();
  judge.judge(passes[0]);
  const double after = PeakMemory::bytes();
  const Result result = judge.finish({}, true);
  check(result.verdict == "clean", "bench wants a clean run to judge, found one that is {}: {}",
        result.verdict, result.story);
  return after - before;
}

}  // namespace

JudgingTimes time_judging(const Checkpoint& checkpoint, int threads) {
  const Request request = some_request(checkpoint.config(), kPrompt, kDecodes + 1, 0);
  const EngineOptions options{
      .dtype = DType::bf16, .pages = pages_for({request}, 16), .threads = threads};
  Engine engine(checkpoint, cpu_ops(), options);
  engine.submit(request);
  const std::vector<Pass> passes = passes_of(engine);

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
  times.rows = kRows;
  times.extra_bytes = extra_bytes(checkpoint, *oracle, threads);
  return times;
}

}  // namespace lockstep
