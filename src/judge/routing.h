#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/judge/pass_view.h"

namespace lockstep {

// How often an engine's rows went to other experts than the fp64 model's logits would send them.
// Near a tie rounding decides, and both models follow the engine there (ReferenceModel::follow), so
// that what comes after is compared with the same experts.
class RoutingComparison {
 public:
  explicit RoutingComparison(DType dtype) : dtype_(dtype) {}

  // The engine's choices of a pass beside the router's logits of the two models. What one of them
  // lacks is left out.
  void add(const PassView& seen, const Pass& exact, const Pass& rounded);
  // In a sentence; none where no choice differs.
  std::vector<std::string> notes() const;

 private:
  void add_row(std::span<const double> chosen, std::span<const double> exact,
               std::span<const double> rounded);

  DType dtype_;
  int64_t rows_ = 0, differ_ = 0;
  double margin_ = 0;      // the largest, in ulp of the dtype
  double over_noise_ = 0;  // the largest, in root mean squares of what rounding does to the row
};

}  // namespace lockstep
