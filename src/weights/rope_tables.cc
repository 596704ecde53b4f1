// Each kind of scaling follows the formulas of Hugging Face's modeling_rope_utils, in fp32 where
// those are: a model was trained on these numbers, and not on better ones.
#include "src/weights/rope_tables.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// A number as fp32 holds it: each is a rounding of the formulas.
float fp32(auto number) { return static_cast<float>(number); }

// base^(2j / dim) for j < dim / 2. Hugging Face divides and raises in fp32, so each step is rounded
// to it; the power itself is taken in fp64, as an fp32 power differs between libraries.
std::vector<float> powers(double base, int64_t dim) {
  std::vector<float> result;
  for (int64_t j = 0; j < dim / 2; ++j) {
    const float exponent = fp32(2 * j) / fp32(dim);
    result.push_back(fp32(std::pow(base, exponent)));
  }
  return result;
}

std::vector<float> inverted(std::vector<float> values, double divisor) {
  for (float& value : values) value = 1.F / (fp32(divisor) * value);
  return values;
}

// base ((factor s / max) - (factor - 1))^(dim / (dim - 2)), s = max(length, max): the base grows
// with the request, and up to the trained length it is the plain one. In fp32 steps whatever the
// dtype of the tables: Hugging Face makes it of the length, which is a tensor, and so in fp32 even
// where its model is in fp64; only the power's exponent is not rounded.
double dynamic_base(const ModelConfig& config, int64_t length) {
  const RopeConfig& rope = config.rope;
  check(config.head_dim > 2,
        "dynamic rope needs heads of more than 2 values, found {}; use another "
        "checkpoint",
        config.head_dim);
  const auto dim = static_cast<double>(config.head_dim);
  const auto trained = fp32(config.max_positions);
  const float seen = std::max(fp32(length), trained);
  const float grown = fp32(rope.factor) * seen / trained - fp32(rope.factor - 1);
  const auto power = fp32(std::pow(grown, dim / (dim - 2)));
  return fp32(rope.theta) * power;
}

// The pair of dimensions that turns `turns` times over the trained positions:
// dim ln(trained / (2 pi turns)) / (2 ln base).
double yarn_dimension(const ModelConfig& config, double turns) {
  const auto trained = static_cast<double>(config.rope.original_max_positions);
  return static_cast<double>(config.head_dim) * std::log(trained / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(config.rope.theta));
}

// Slow pairs are stretched, fast ones kept, and in between is a ramp: inv / factor ramp + inv (1 -
// ramp), ramp = clamp((j - low) / (high - low), 0, 1). Sums and products stand as Hugging Face has
// them, as another order moves the last bits.
std::vector<float> yarn(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  double low = yarn_dimension(config, rope.beta_fast);
  double high = yarn_dimension(config, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.head_dim - 1));
  if (low == high) high += 0.001;  // no ramp: a step, without dividing by zero

  const std::vector<float> power = powers(rope.theta, config.head_dim);
  const std::vector<float> kept = inverted(power, 1);
  std::vector<float> result = inverted(power, rope.factor);
  for (size_t j = 0; j < result.size(); ++j) {
    const float slope = (fp32(j) - fp32(low)) / fp32(high - low);
    const float keep = 1.F - std::clamp(slope, 0.F, 1.F);
    result[j] = result[j] * (1.F - keep) + kept[j] * keep;
  }
  return result;
}

// By wavelength 2 pi / inv: long waves are stretched, short ones kept, and those between are mixed
// by (trained / wave - low) / (high - low).
std::vector<float> llama3(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  const auto trained = fp32(rope.original_max_positions);
  const auto low = fp32(rope.low_freq_factor);
  const auto high = fp32(rope.high_freq_factor);
  const auto factor = fp32(rope.factor);
  std::vector<float> result = inverted(powers(rope.theta, config.head_dim), 1);
  for (float& inverse : result) {
    const float wave = fp32(2 * std::numbers::pi) / inverse;
    const float smooth = (trained / wave - low) / (high - low);
    if (wave > trained / low)
      inverse = inverse / factor;
    else if (wave >= trained / high)
      inverse = (1.F - smooth) * inverse / factor + smooth * inverse;
  }
  return result;
}

// A divisor for each pair, from one list up to the trained length and from another beyond it.
std::vector<float> longrope(const ModelConfig& config, int64_t length) {
  const RopeConfig& rope = config.rope;
  const auto& factors = length > rope.original_max_positions ? rope.long_factor : rope.short_factor;
  std::vector<float> result = powers(rope.theta, config.head_dim);
  for (size_t j = 0; j < result.size(); ++j) result[j] = 1.F / (fp32(factors.at(j)) * result[j]);
  return result;
}

std::vector<float> inverse_frequencies(const ModelConfig& config, int64_t length) {
  const double theta = config.rope.theta;
  switch (config.rope.type) {
    case RopeType::standard:
      return inverted(powers(theta, config.head_dim), 1);
    case RopeType::linear: {
      std::vector<float> result = inverted(powers(theta, config.head_dim), 1);
      for (float& inverse : result) inverse /= fp32(config.rope.factor);
      return result;
    }
    case RopeType::dynamic:
      return inverted(powers(dynamic_base(config, length), config.head_dim), 1);
    case RopeType::yarn:
      return yarn(config);
    case RopeType::llama3:
      return llama3(config);
    case RopeType::longrope:
      return longrope(config, length);
  }
  fail("rope type {} has no formula", static_cast<int>(config.rope.type));
}

// Stretched positions flatten the softmax; a factor on cos and sin sharpens it again.
double yarn_magnitude(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

double attention_factor(const RopeConfig& rope) {
  const bool yarn = rope.type == RopeType::yarn;
  if (!yarn && rope.type != RopeType::longrope) return 1;
  if (rope.attention_factor > 0) return rope.attention_factor;
  if (!yarn)
    return rope.factor <= 1
               ? 1
               : std::sqrt(1 + std::log(rope.factor) / std::log(rope.original_max_positions));
  if (rope.mscale > 0 && rope.mscale_all_dim > 0)
    return yarn_magnitude(rope.factor, rope.mscale) /
           yarn_magnitude(rope.factor, rope.mscale_all_dim);
  return yarn_magnitude(rope.factor, 1);
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelConfig& config, int64_t length) {
  check(length >= 1, "rope tables are made for a request of at least one token, found {}", length);
  return {inverse_frequencies(config, length), attention_factor(config.rope)};
}

bool RopeConfig::depends_on_length() const {
  return type == RopeType::dynamic || type == RopeType::longrope;
}

void RopeFrequencies::put_row(int64_t position, std::span<float> cos, std::span<float> sin) const {
  const auto& [inverse, factor] = *this;
  check(position >= 0 && cos.size() == inverse.size() && sin.size() == inverse.size(),
        "position {} of a rope table wants {} cosines and sines, found room for {} and {}",
        position, inverse.size(), cos.size(), sin.size());
  for (size_t j = 0; j < inverse.size(); ++j) {
    const double angle = fp32(position) * inverse[j];  // rounded to fp32, then exact
    cos[j] = fp32(std::cos(angle)) * fp32(factor);
    sin[j] = fp32(std::sin(angle)) * fp32(factor);
  }
}

}  // namespace lockstep
