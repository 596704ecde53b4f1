#include "reference/rotary.h"

#include "kernels/check.h"

namespace lockstep {

Rotary::Rotary(const ModelConfig& config, bool fp64_tables)
    : config_(config), fp64_tables_(fp64_tables) {}

void Rotary::append(Angles& angles, int64_t position, int64_t length) {
  check(position >= 0 && position < length,
        "a position below the request's {} tokens was wanted, found {}: say how many tokens the "
        "request has after its pass",
        length, position);
  if (length_ == 0 || (depends_on_length(config_.rope) && length != length_)) {
    frequencies_ = rope_frequencies(config_, length);
    length_ = length;
  }
  const auto half = static_cast<size_t>(config_.head_dim / 2);
  std::vector<double> cos(half), sin(half);
  if (fp64_tables_) {
    rope_row(frequencies_, position, cos, sin);
  } else {
    std::vector<float> cos_fp32(half), sin_fp32(half);
    rope_row(frequencies_, position, cos_fp32, sin_fp32);
    cos.assign(cos_fp32.begin(), cos_fp32.end());
    sin.assign(sin_fp32.begin(), sin_fp32.end());
  }
  angles.cos.insert(angles.cos.end(), cos.begin(), cos.end());
  angles.sin.insert(angles.sin.end(), sin.begin(), sin.end());
  for (double inv_freq : frequencies_.inv_freq)
    angles.angle.push_back(static_cast<double>(position) * inv_freq);
}

}  // namespace lockstep
