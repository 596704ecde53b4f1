// The engine serves once and its passes are kept; the fp64 model alone, a judge of ops, and a judge
// with both models beside it then take the same passes, each timed pass by pass. A pass that is not
// judged clean ends the benchmark.
#include "src/bench/judging_bench.h"

#include <fmt/format.h>

#include "kernels/base/check.h"
#include "src/bench/peak_memory.h"
#include "src/engine/engine.h"
#include "src/judge/judge.h"
#include "src/session/device.h"
#include "src/session/judged_run.h"
#include "src/session/reference_library.h"

namespace lockstep {
namespace {

constexpr int64_t kJudgedPrompt = 128;
constexpr int kPromptPasses = 4;      // times; the first warms up and does not count
constexpr int64_t kShortPrompt = 8;   // before the passes that decode
constexpr int64_t kDecodePasses = 6;  // passes; the first warms up and does not count

constexpr double kJudgingLimit = 2e9;  // bytes that judging a pass may take
constexpr int64_t kRows = 64;          // requests of the pass that the memory is measured on

Request some_request(const ModelConfig& config, int64_t tokens, int64_t max_new, int64_t seed) {
  Request request{.max_new = max_new};
  for (int64_t i = 0; i < tokens; ++i)
    request.prompt.push_back(static_cast<int32_t>((i * 7919 + 13 + seed) % config.vocab));
  return request;
}

// An engine's passes of those requests.
std::vector<Pass> passes_of(const Checkpoint& checkpoint, const std::vector<Request>& requests,
                            EngineOptions options) {
  options.pages = pages_for(requests, options.page_size);
  Engine engine(checkpoint, ops_of(options.device), options);
  for (const Request& request : requests) engine.submit(request);
  std::vector<Pass> passes;
  Recorder recorder({}, false, [&](Pass pass) { passes.push_back(std::move(pass)); });
  Probe probe(&recorder);
  while (engine.step(probe)) check(probe.failure().empty(), "{}", probe.failure());
  return passes;
}

// The judges of one engine's passes.
class Bench {
 public:
  Bench(const Checkpoint& checkpoint, const EngineOptions& engine) : threads_(engine.threads) {
    ReferenceLibrary& library = open_reference();
    const ReferenceOptions options = reference_options(library, engine);
    oracle_ = library.oracle(checkpoint, options);
    alone_ = library.model(checkpoint, options, DType::f64);
    exact_ = library.model(checkpoint, options, DType::f64);
    rounded_ = library.model(checkpoint, options, DType::bf16);
  }

  // The passes that follow the first `warm` ones are timed.
  void time(std::span<const Pass> passes, size_t warm, JudgingTimes::Pass& times) {
    Judge ops = judge(false), whole = judge(true);
    Probe off;
    for (size_t i = 0; i < passes.size(); ++i) {
      const double model = seconds_of([&] { alone_->run(passes[i].info, off); });
      const double of_ops = seconds_of([&] { ops.judge(passes[i]); });
      const double of_whole = seconds_of([&] { whole.judge(passes[i]); });
      if (i < warm) continue;
      times.model.push_back(model);
      times.ops.push_back(of_ops);
      times.whole.push_back(of_whole);
    }
    check_clean(ops);
    check_clean(whole);
  }
  // Measures a pass in which every request gets logits, as those of a big head are the largest
  // tensor. In the peak of this process, which the allocator was made to give back to the system
  // before.
  double extra_bytes(const Pass& pass) {
    Judge ops = judge(false);
    PeakMemory::reset();
    const double before = PeakMemory::bytes();
    ops.judge(pass);
    const double after = PeakMemory::bytes();
    check_clean(ops);
    return after - before;
  }

 private:
  Judge judge(bool models) {
    JudgeOptions options;
    options.threads = threads_;
    // Declared as `run` does: to find out where another engine rounds takes several tries an op.
    Manifest manifest{.graph = oracle_->graph(), .dtype = DType::bf16};
    for (const Place& place : manifest.graph.places())
      manifest.contracts[std::string(place.point->name)] = RoundingContract::fused;
    return {manifest, *oracle_, models ? exact_.get() : nullptr, models ? rounded_.get() : nullptr,
            options};
  }
  static void check_clean(Judge& judge) {
    const Result result = judge.finish({}, true);
    check(result.verdict == RunVerdict::clean,
          "bench wants a clean run to judge, found one that is {}: {}", name_of(result.verdict),
          result.story);
  }

  int threads_;
  std::unique_ptr<Oracle> oracle_;
  std::unique_ptr<ReferenceModel> alone_, exact_, rounded_;
};

}  // namespace

JudgingTimes time_judging(const Checkpoint& checkpoint, Device device, int threads) {
  const ModelConfig& config = checkpoint.config();
  const EngineOptions options{.device = device, .dtype = DType::bf16, .threads = threads};
  Bench bench(checkpoint, options);
  JudgingTimes times{.tokens = kJudgedPrompt, .rows = kRows};
  const auto passes = [&](const std::vector<Request>& requests) {
    return passes_of(checkpoint, requests, options);
  };
  // The prompt and the warm-up do not count.
  bench.time(passes({some_request(config, kShortPrompt, kDecodePasses + 1, 0)}), 2, times.decode);
  std::vector<Request> requests;
  for (int64_t i = 0; i < kRows; ++i) requests.push_back(some_request(config, 1, 1, i));
  const std::vector<Pass> many = passes(requests);
  check(many.size() == 1, "bench wants {} requests served in one pass, found {}", kRows,
        many.size());
  // Before the prompt, whose memory would be found again.
  times.extra_bytes = bench.extra_bytes(many[0]);
  const std::vector<Pass> prompt = passes({some_request(config, kJudgedPrompt, 1, 0)});
  for (int i = 0; i < kPromptPasses; ++i) bench.time(prompt, i == 0 ? 1 : 0, times.prompt);
  return times;
}

std::vector<Figure> JudgingTimes::figures(const std::string& name) const {
  std::vector<Figure> list;
  const auto add = [&](const std::string& pass, const Pass& of) {
    const double model = median_of(of.model);
    const auto row = [&](const char* what, const std::vector<double>& samples,
                         Figure::Whole whole) {
      list.push_back({name, what + pass, "ms", 1e3, samples, whole, model});
    };
    row("the fp64 model, ", of.model, Figure::Whole::least);
    row("judging the ops of ", of.ops, Figure::Whole::fp64_model);
    row("judging, with both models, ", of.whole, Figure::Whole::fp64_model);
  };
  add("a decode pass", decode);
  add(fmt::format("a prompt of {}", tokens), prompt);
  list.push_back({name,
                  fmt::format("memory, judging {} rows of logits", rows),
                  "MB",
                  1e-6,
                  {extra_bytes},
                  Figure::Whole::judging_limit,
                  kJudgingLimit});
  return list;
}

}  // namespace lockstep
