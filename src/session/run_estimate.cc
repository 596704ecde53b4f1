#include "src/session/run_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace lockstep {
namespace {

// Seconds of one core, as measured on x86-64 with AVX2. The oracle and the two models take a token
// through every weight in fp64 or after it; a pass reads every weight once for each of them,
// however few its tokens; statistics look at every number of every point.
constexpr double kPerWeightAndToken = 1.2e-9;
constexpr double kPerWeightAndPass = 4e-9;
constexpr double kPerNumber = 60e-9;
constexpr double kPerKey = 1.5e-9;  // of attention, by head and dim

double weights_of(const ModelConfig& config) {
  const double attention = static_cast<double>(config.hidden * config.head_dim) *
                           static_cast<double>(2 * config.heads + 2 * config.kv_heads);
  const double mlp = 3.0 * static_cast<double>(config.hidden * config.intermediate);
  return static_cast<double>(config.layers) * (attention + mlp) +
         static_cast<double>(config.hidden * config.vocab);
}

// Of all points, by token.
double numbers_of(const ModelConfig& config) {
  const int64_t of_heads = config.head_dim * (4 * config.heads + 4 * config.kv_heads);
  return static_cast<double>(config.layers * (of_heads + 6 * config.hidden) +
                             config.layers * 3 * config.intermediate + config.vocab);
}

}  // namespace

RunEstimate estimate_judging(const ModelConfig& config, const EngineOptions& options,
                             const std::vector<Request>& requests) {
  const double heads = static_cast<double>(config.layers * config.heads * config.head_dim);
  double tokens = 0, keys = 0, passes = 0;
  for (const Request& request : requests) {
    const auto prompt = static_cast<double>(request.prompt.size());
    const auto steps = static_cast<double>(request.steps());
    const double all = prompt + steps;
    tokens += all;
    keys += all * all / 2;
    const double chunk = options.chunk > 0 ? static_cast<double>(options.chunk) : prompt;
    passes = std::max(passes, prompt / std::max(chunk, 1.0) + steps);
  }
  const double work =
      weights_of(config) * (tokens * kPerWeightAndToken + passes * kPerWeightAndPass) +
      tokens * numbers_of(config) * kPerNumber + keys * heads * kPerKey;
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return {static_cast<int64_t>(tokens), work / threads};
}

std::string long_run_notice(const RunEstimate& estimate) {
  constexpr double kMinute = 60, kHour = 3600, kDay = 86400;
  if (!(estimate.seconds > kMinute)) return "";
  const double seconds = estimate.seconds;
  const std::string time = seconds < 2 * kHour  ? fmt::format("{:.0f} minutes", seconds / kMinute)
                           : seconds < 2 * kDay ? fmt::format("{:.0f} hours", seconds / kHour)
                                                : fmt::format("{:.0f} days", seconds / kDay);
  return fmt::format(
      "{} tokens to judge take about {} here: lower --max-new, shorten the prompts, or judge some "
      "--layers or --points alone",
      estimate.tokens, time);
}

}  // namespace lockstep
