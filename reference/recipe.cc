// Reads config.json in its old and its new spelling, and makes RoPE's frequencies by the formulas
// of transformers, in fp64. Fields that are absent have that library's defaults.
#include "reference/recipe.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/check.h"
#include "kernels/files/json.h"

namespace lockstep {
namespace {

// A field that is there and not null, which stands for one that is absent, as in transformers.
template <typename T>
T value_of(const JsonValue& object, const char* key, T otherwise) {
  if (!object || !object[key]) return otherwise;
  const JsonValue value = object[key];
  if constexpr (std::is_same_v<T, bool>)
    return value.flag();
  else if constexpr (std::is_integral_v<T>)
    return value.whole<T>();
  else if constexpr (std::is_same_v<T, double>)
    return value.number();
  else
    return value.text();
}

std::vector<double> numbers_of(const JsonValue& object, const char* key) {
  std::vector<double> numbers;
  if (!object || !object[key]) return numbers;
  for (const JsonValue& number : object[key].items()) numbers.push_back(number.number());
  return numbers;
}

// rope_parameters is the new spelling, rope_scaling the old one.
RotaryRecipe rotary_of(const JsonValue& config) {
  const JsonValue fields =
      config["rope_parameters"] ? config["rope_parameters"] : config["rope_scaling"];
  RotaryRecipe r;
  r.type = value_of(fields, "rope_type", value_of(fields, "type", r.type));
  r.theta = value_of(fields, "rope_theta", value_of(config, "rope_theta", r.theta));
  r.trained = config["max_position_embeddings"].whole<int64_t>();
  r.first_trained = value_of(fields, "original_max_position_embeddings", r.trained);
  const bool deduced = r.type == "yarn" || r.type == "longrope";
  const double stretch = static_cast<double>(r.trained) / static_cast<double>(r.first_trained);
  r.factor = value_of(fields, "factor", deduced ? stretch : r.factor);
  r.attention_factor = value_of(fields, "attention_factor", 0.0);
  r.beta_fast = value_of(fields, "beta_fast", r.beta_fast);
  r.beta_slow = value_of(fields, "beta_slow", r.beta_slow);
  r.mscale = value_of(fields, "mscale", 0.0);
  r.mscale_all_dim = value_of(fields, "mscale_all_dim", 0.0);
  r.truncate = value_of(fields, "truncate", true);
  r.low_freq_factor = value_of(fields, "low_freq_factor", r.low_freq_factor);
  r.high_freq_factor = value_of(fields, "high_freq_factor", r.high_freq_factor);
  r.short_factor = numbers_of(fields, "short_factor");
  r.long_factor = numbers_of(fields, "long_factor");
  return r;
}

// Sliding as layer_types says, or else from layer max_window_layers on.
std::vector<int64_t> windows_of(const JsonValue& config) {
  const auto layers = config["num_hidden_layers"].whole<size_t>();
  std::vector<int64_t> windows(layers, 0);
  if (!value_of(config, "use_sliding_window", false)) return windows;
  const auto types =
      config["layer_types"] ? config["layer_types"].texts() : std::vector<std::string>();
  const size_t from = value_of(config, "max_window_layers", 0);
  for (size_t layer = 0; layer < layers; ++layer) {
    const bool slides = types.empty() ? layer >= from : types.at(layer) == "sliding_attention";
    if (slides) windows[layer] = config["sliding_window"].whole<int64_t>();
  }
  return windows;
}

Recipe recipe_from(const JsonValue& config) {
  Recipe recipe;
  recipe.heads = config["num_attention_heads"].whole<int64_t>();
  recipe.kv_heads = value_of(config, "num_key_value_heads", recipe.heads);
  // By transformers: Qwen3Config has a default, the others divide the hidden size. The model_type
  // may be left out, since it follows from the architecture.
  const bool qwen3 = config["architectures"].texts().at(0) == "Qwen3ForCausalLM";
  const int64_t split = config["hidden_size"].whole<int64_t>() / recipe.heads;
  recipe.head_dim = value_of(config, "head_dim", qwen3 ? int64_t{128} : split);
  recipe.norm_eps = value_of(config, "rms_norm_eps", recipe.norm_eps);
  recipe.normalises_experts = value_of(config, "norm_topk_prob", false);
  recipe.window = windows_of(config);
  recipe.rotary = rotary_of(config);
  return recipe;
}

double exponent_of(int64_t pair, int64_t dim) {
  return static_cast<double>(2 * pair) / static_cast<double>(dim);
}

double power_of(double base, int64_t pair, int64_t dim) {
  return std::pow(base, exponent_of(pair, dim));
}

// Pairs that turn more than beta_fast times over the trained positions keep their frequency, those
// that turn less than beta_slow times are stretched, and between them is a ramp.
std::vector<double> yarn(const RotaryRecipe& r, int64_t dim) {
  const auto pair_that_turns = [&](double times) {
    const double wave = static_cast<double>(r.first_trained) / (times * 2 * std::numbers::pi);
    return static_cast<double>(dim) * std::log(wave) / (2 * std::log(r.theta));
  };
  double low = pair_that_turns(r.beta_fast), high = pair_that_turns(r.beta_slow);
  if (r.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  // The paper's code has it too, against a division by zero.
  const double width = low == high ? 0.001 : high - low;
  std::vector<double> result;
  for (int j = 0; j < dim / 2; ++j) {
    const double kept = 1 / power_of(r.theta, j, dim), stretched = kept / r.factor;
    const double ramp = std::clamp((j - low) / width, 0.0, 1.0);
    result.push_back(stretched * ramp + kept * (1 - ramp));
  }
  return result;
}

// The scaling of Llama 3.1: wavelengths beyond trained / low_freq_factor are stretched, those below
// trained / high_freq_factor kept, and between them the two are mixed.
std::vector<double> llama3(const RotaryRecipe& r, int64_t dim) {
  const auto trained = static_cast<double>(r.first_trained);
  std::vector<double> result;
  for (int64_t j = 0; j < dim / 2; ++j) {
    const double kept = 1 / power_of(r.theta, j, dim), wave = 2 * std::numbers::pi / kept;
    const double smooth =
        (trained / wave - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
    if (wave > trained / r.low_freq_factor)
      result.push_back(kept / r.factor);
    else if (wave < trained / r.high_freq_factor)
      result.push_back(kept);
    else
      result.push_back((1 - smooth) * kept / r.factor + smooth * kept);
  }
  return result;
}

// A number as fp32 holds it.
float fp32(auto number) { return static_cast<float>(number); }

// The base grows with the request once it is longer than what was trained. In fp32 steps, which are
// part of the recipe: Hugging Face makes it of the length, a tensor in fp32 whatever the model.
double dynamic_base(const RotaryRecipe& r, int64_t dim, int64_t length) {
  const auto width = static_cast<double>(dim);
  const auto trained = fp32(r.trained);
  const float seen = std::max(fp32(length), trained);
  const auto factor = fp32(r.factor);
  const float grown = factor * seen / trained - fp32(r.factor - 1);
  const double power = std::pow(double{grown}, width / (width - 2));
  return fp32(r.theta) * fp32(power);
}

}  // namespace

Recipe read_recipe(const std::string& text, const std::string& path) {
  return recipe_from(JsonDocument(text, {path, "fetch the file again"}).root());
}

std::vector<double> RotaryRecipe::frequencies(int64_t dim, int64_t length) const {
  if (type == "yarn") return yarn(*this, dim);
  if (type == "llama3") return llama3(*this, dim);
  const bool is_long = length > first_trained;
  const double base = type == "dynamic" ? dynamic_base(*this, dim, length) : theta;
  std::vector<double> result;
  for (int64_t j = 0; j < dim / 2; ++j) {
    double divisor = power_of(base, j, dim);
    if (type == "linear") divisor *= factor;
    if (type == "longrope") divisor *= (is_long ? long_factor : short_factor).at(j);
    result.push_back(1 / divisor);
  }
  return result;
}

// An exponent 2j / dim is exact where dim is a power of two; else its rounding is multiplied by the
// logarithm of the base. Of a mixture a F + b (1 - F), the weight F is off by some u, and the
// larger of the two frequencies is `factor` times the other.
std::vector<double> RotaryRecipe::frequency_errors(int64_t dim) const {
  double steps = 1;
  if (type == "linear" || type == "longrope") steps = 2;
  if (type == "dynamic") steps = 6;
  if (type == "yarn") steps = 3 + 2 * factor;
  if (type == "llama3") steps = 3 + 4 * factor;
  const bool exact = (dim & (dim - 1)) == 0;
  std::vector<double> errors;
  for (int64_t j = 0; j < dim / 2; ++j) {
    errors.push_back(steps + (exact ? 0 : std::log(theta) * exponent_of(j, dim)));
  }
  return errors;
}

// YaRN's 0.1 ln(factor) + 1, or the quotient of two such where a model names mscale; LongRoPE's
// sqrt(1 + ln(factor) / ln(trained)) (Ding and others, 2024).
double RotaryRecipe::magnitude() const {
  if (type != "yarn" && type != "longrope") return 1;
  if (attention_factor > 0) return attention_factor;
  if (type == "longrope")
    return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(first_trained));
  const auto scaled = [&](double scale) {
    return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
  };
  if (mscale > 0 && mscale_all_dim > 0) return scaled(mscale) / scaled(mscale_all_dim);
  return scaled(1);
}

}  // namespace lockstep
