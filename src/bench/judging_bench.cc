// The engine serves once and its passes are kept; the fp64 model alone, a judge of ops, and a judge
// with both models beside it then take the same passes, each timed pass by pass. A pass that is not
// judged clean ends the benchmark.
#include "src/bench/judging_bench.h"

#include <fmt/format.h>

#include "kernels/base/check.h"
#include "src/bench/judged_passes.h"
#include "src/bench/peak_memory.h"

namespace lockstep {
namespace {

constexpr int64_t kJudgedPrompt = 128;
constexpr int kPromptPasses = 4;      // times; the first warms up and does not count
constexpr int64_t kShortPrompt = 8;   // before the passes that decode
constexpr int64_t kDecodePasses = 6;  // passes; the first warms up and does not count

constexpr double kJudgingLimit = 2e9;  // bytes that judging a pass may take
constexpr int64_t kRows = 64;          // requests of the pass that the memory is measured on

// The passes that follow the first `warm` ones are timed.
void time_passes(const JudgedModel& model, std::span<const Pass> passes, size_t warm,
                 JudgingTimes::Pass& times) {
  Judge ops = model.judge(false), whole = model.judge(true);
  Probe off;
  for (size_t i = 0; i < passes.size(); ++i) {
    const double alone = seconds_of([&] { model.alone->run(passes[i].info, off); });
    const double of_ops = seconds_of([&] { ops.judge(passes[i]); });
    const double of_whole = seconds_of([&] { whole.judge(passes[i]); });
    if (i < warm) continue;
    times.model.push_back(alone);
    times.ops.push_back(of_ops);
    times.whole.push_back(of_whole);
  }
  JudgedModel::check_clean(ops);
  JudgedModel::check_clean(whole);
}

// Measures a pass in which every request gets logits, as those of a big head are the largest
// tensor. In the peak of this process, which the allocator was made to give back to the system
// before.
double extra_bytes_of(const JudgedModel& model, const Pass& pass) {
  Judge ops = model.judge(false);
  PeakMemory::reset();
  const double before = PeakMemory::bytes();
  ops.judge(pass);
  const double after = PeakMemory::bytes();
  JudgedModel::check_clean(ops);
  return after - before;
}

}  // namespace

JudgingTimes time_judging(const Checkpoint& checkpoint, Device device, int threads) {
  const ModelConfig& config = checkpoint.config();
  const EngineOptions options{.device = device, .dtype = DType::bf16, .threads = threads};
  const JudgedModel model(checkpoint, options);
  JudgingTimes times{.tokens = kJudgedPrompt, .rows = kRows};
  const auto passes = [&](const std::vector<Request>& requests) {
    return passes_of(checkpoint, requests, options, held_by(*model.oracle));
  };
  // The prompt and the warm-up do not count.
  time_passes(model, passes({some_request(config, kShortPrompt, kDecodePasses + 1, 0)}), 2,
              times.decode);
  std::vector<Request> requests;
  for (int64_t i = 0; i < kRows; ++i) requests.push_back(some_request(config, 1, 1, i));
  const std::vector<Pass> many = passes(requests);
  check(many.size() == 1, "bench wants {} requests served in one pass, found {}", kRows,
        many.size());
  // Before the prompt, whose memory would be found again.
  times.extra_bytes = extra_bytes_of(model, many[0]);
  const std::vector<Pass> prompt = passes({some_request(config, kJudgedPrompt, 1, 0)});
  for (int i = 0; i < kPromptPasses; ++i) time_passes(model, prompt, i == 0 ? 1 : 0, times.prompt);
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
