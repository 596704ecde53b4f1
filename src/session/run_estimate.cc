// How long judging will take, from sizes alone. The constants were fitted to runs on one machine
// and are good to a factor of three: enough to warn of hours, no promise.
#include "src/session/run_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <thread>

namespace lockstep {
namespace {

// Seconds of one core, fitted to runs of both bundled checkpoints on x86-64 with AVX2. The oracle
// and the two models take each token through every weight, and each pass reads every weight for
// each of them, however few its tokens; a judged place costs something however small it is; and
// statistics look at every number of every point.
constexpr double kPerWeightAndToken = 0.6e-9;
constexpr double kPerWeightAndPass = 1.5e-9;
constexpr double kPerPlaceAndPass = 0.25e-3;
constexpr double kPerNumber = 120e-9;
// Attention costs this by key, head and dim: in a prompt, and in decoding, where each pass gathers
// and hashes all keys again.
constexpr double kPerPromptKey = 5e-9, kPerDecodedKey = 25e-9;
constexpr double kPlacesOfLayer = 18;
// On a device the models and the oracle take next to nothing beside the numbers that they show,
// which the processors look at; 15 and 67 s for prompts of 2048 and 8192 of the Qwen3-0.6B shape,
// an H100 with 16 cores.

// Weights that each token meets: q and o are hidden x heads x dim, k and v hidden x kv_heads x dim.
double weights_of(const ModelConfig& config) {
  const double attention = static_cast<double>(config.hidden * config.head_dim) *
                           static_cast<double>(2 * config.heads + 2 * config.kv_heads);
  const double mlp = 3.0 * static_cast<double>(config.hidden * config.intermediate);
  return static_cast<double>(config.layers) * (attention + mlp) +
         static_cast<double>(config.hidden * config.vocab);
}

// The numbers that all points show of a token.
double numbers_of(const ModelConfig& config) {
  const int64_t of_heads = config.head_dim * (4 * config.heads + 4 * config.kv_heads);
  return static_cast<double>(config.layers * (of_heads + 6 * config.hidden) +
                             config.layers * 3 * config.intermediate + config.vocab);
}

}  // namespace

// Work is a sum of terms: by weight and token, by number and token, by weight and pass, by place
// and pass, and by key that a query sees (half the square of a prompt). Their factors were measured
// on one machine; the estimate tells minutes from hours, no more.
RunEstimate estimate_judging(const ModelConfig& config, const EngineOptions& options,
                             const std::vector<Request>& requests) {
  const double heads = static_cast<double>(config.layers * config.heads * config.head_dim);
  double tokens = 0, attention = 0, passes = 0;
  for (const Request& request : requests) {
    const auto prompt = static_cast<double>(request.prompt.size());
    const auto steps = static_cast<double>(request.most_steps());
    const auto of_all = static_cast<double>(request.all_steps());
    tokens += prompt + of_all;
    attention +=
        prompt * prompt / 2 * kPerPromptKey + of_all * (prompt + steps / 2) * kPerDecodedKey;
    const double chunks = options.chunk > 0 ? prompt / static_cast<double>(options.chunk) : 1;
    passes = std::max(passes, chunks + steps);
  }
  const double weights = weights_of(config);
  const double of_models = tokens * weights * kPerWeightAndToken +
                           passes * weights * kPerWeightAndPass + heads * attention;
  const double of_results =
      tokens * numbers_of(config) * kPerNumber +
      passes * static_cast<double>(config.layers) * kPlacesOfLayer * kPerPlaceAndPass;
  const double work = of_results + (options.device == Device::cpu ? of_models : 0);
  const int threads = options.threads > 0 ? options.threads : machine_threads();
  // No engine takes more, and says so.
  constexpr double kMost = std::numeric_limits<int32_t>::max();
  if (!(tokens <= kMost)) return {};
  return {static_cast<int64_t>(tokens), work / threads};
}

std::string RunEstimate::notice() const {
  constexpr double kMinute = 60, kHour = 3600, kDay = 86400;
  if (!(seconds > kMinute)) return "";
  const std::string time = seconds < 2 * kHour  ? fmt::format("{:.0f} minutes", seconds / kMinute)
                           : seconds < 2 * kDay ? fmt::format("{:.0f} hours", seconds / kHour)
                                                : fmt::format("{:.0f} days", seconds / kDay);
  return fmt::format(
      "{} tokens to judge take about {} here: lower --max-new, shorten the prompts, or judge some "
      "--layers or --points alone",
      tokens, time);
}

}  // namespace lockstep
