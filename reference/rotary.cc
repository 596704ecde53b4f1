// The angle of pair j at position p is p f[j], f from the recipe (Su et al. 2021, RoFormer; the
// scalings of Hugging Face's modeling_rope_utils). Frequencies are made once, and again where they
// grow with the length of the request.
//
// `iterated` is llama.cpp's way: each pair's angle is the one before it times theta^(-2/d), in
// fp32, so that the error grows along the head. errors_ is how far fp32 steps may be off, which the
// budget of rope.cos and rope.sin reads.
#include "reference/rotary.h"

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"

namespace lockstep {

Rotary::Rotary(const Recipe& recipe, bool in_fp32)
    : recipe_(recipe.rotary),
      head_dim_(recipe.head_dim),
      in_fp32_(in_fp32),
      magnitude_(recipe_.magnitude()),
      errors_(recipe_.frequency_errors(head_dim_)) {}

void Rotary::append(Angles& angles, int64_t position, int64_t length, bool iterated) {
  check(position >= 0 && position < length,
        "a position below the request's {} tokens was wanted, found {}: say how many tokens the "
        "request has after its pass",
        length, position);
  if (length_ == 0 || (recipe_.grows_with_length() && length != length_)) {
    frequencies_ = recipe_.frequencies(head_dim_, length);
    length_ = length;
  }
  const auto rounded = [this](double x) { return round_to(x, in_fp32_ ? DType::f32 : DType::f64); };
  const double exponent = -2 / static_cast<double>(head_dim_);
  const auto step = static_cast<float>(std::pow(recipe_.theta, exponent));
  auto of_pair = static_cast<float>(position);
  for (size_t j = 0; j < frequencies_.size(); ++j) {
    double angle = rounded(static_cast<double>(position) * rounded(frequencies_[j]));
    if (iterated) {
      const double plain = std::pow(recipe_.theta, exponent * static_cast<double>(j));
      // The scaling is what the recipe's frequency is of the plain one.
      angle = static_cast<float>(of_pair * (frequencies_[j] / plain));
      of_pair *= step;
    }
    angles.cos.push_back(rounded(rounded(std::cos(angle)) * magnitude_));
    angles.sin.push_back(rounded(rounded(std::sin(angle)) * magnitude_));
    angles.error.push_back(angle * errors_[j]);
  }
}

}  // namespace lockstep
