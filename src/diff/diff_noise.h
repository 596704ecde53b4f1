#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "probes/graph.h"
#include "traces/trace.h"

namespace lockstep {

// The difference of two tensors' rows so far.
struct Distance {
  int64_t elements = 0;
  double difference = 0, size = 0;  // sums of squares
  bool nonfinite = false;           // finite on one side only, or unlike

  void add(double a, double b) {
    if (!std::isfinite(a) || !std::isfinite(b)) {
      nonfinite = nonfinite || !(a == b || (std::isnan(a) && std::isnan(b)));
      return;
    }
    ++elements;
    difference += (a - b) * (a - b);
    size += a * a;
  }
  // Never divides by zero: a difference from nothing is infinitely large.
  double relative() const {
    if (nonfinite) return std::numeric_limits<double>::infinity();
    if (difference == 0) return 0;
    return size > 0 ? std::sqrt(difference / size) : std::numeric_limits<double>::infinity();
  }
};

// relative() of two rows.
double relative_of(std::span<const double> a, std::span<const double> b);

// How far apart two traces are at a place.
struct RelativeDifference {
  double all = 0;    // rms of the difference / rms of the first trace's, over a request's rows
  double worst = 0;  // the largest of an element, as worst_of; infinite where one is not known
};

// The largest |a - b| of two rows' elements, in units of the element or of the rms of its row,
// whichever is larger: 2 at most, and infinite where only one of the two is finite.
double worst_of(std::span<const double> a, std::span<const double> b);

// The distance of two traces that rounding explains, place by place, by the distance of the inputs
// there. This is the screen of diff.h. Distances are relative and have no unit; places are borrowed
// for the constructor alone.
class DiffNoise {
 public:
  // By place, in graph order: what it is, which places its op reads, and whether both traces show
  // it at all. `dtype`: the coarser of the two.
  DiffNoise(const std::vector<Place>& places, const std::vector<std::vector<size_t>>& inputs,
            const std::vector<bool>& shown, DType dtype);

  // Linear ops that a trace declares to round their operands have the noise of that, and rotary
  // tables that of the run's dtype unless RoPE is declared to read them as they were computed.
  void widen(const Manifest& declared);
  // The places whose distance explains that of a place: its inputs and, instead of one that is not
  // shown, those of that one.
  const std::vector<size_t>& sources(size_t place) const { return sources_[place].places; }
  // Enters what was found at a place; the largest of a request is kept.
  void enter(size_t place, int32_t request, const RelativeDifference& found);
  // The largest of what the sources of a place have of the request; of any request where
  // `of_any`.
  RelativeDifference inherited(size_t place, int32_t request, bool of_any) const;
  // The most that rounding makes of that, in rows up to a position; no limit of an element is known
  // where an op is not shown.
  RelativeDifference limit(size_t place, const RelativeDifference& inherited,
                           int32_t last_position = 0) const;
  // Whether experts are chosen in between, which is not shown: of other experts, any distance is.
  bool hides_a_choice(size_t place) const { return sources_[place].choice; }

 private:
  struct Sources {
    std::vector<size_t> places;
    int hidden = 0;       // ops in between that are not shown
    bool choice = false;  // one of them chooses experts
  };
  std::vector<Place> places_;
  std::vector<double> roundoff_{};  // unit roundoff of what is rounded, by place
  std::vector<Sources> sources_;    // by place
  std::vector<std::map<int32_t, RelativeDifference>> largest_;  // by place and request
};

}  // namespace lockstep
