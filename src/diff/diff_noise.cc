// The noise of a place: two right engines that round otherwise, or add up in another order, differ
// by some roundings of the op's result, and by what its inputs differ by already. The limit of a
// place is made of what is shown upstream of it, so that noise may grow through a model and a jump
// may not.
#include "src/diff/diff_noise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "src/diff/diff.h"
#include "src/stats/moments.h"
#include "traces/run_facts.h"

namespace lockstep {
namespace {

// Relative rms that one op may add: a few roundings of its output, and of its fp32 accumulation.
double own_noise(double roundoff) { return 4 * roundoff + 64 * 0x1p-24; }

// A frequency is rounded to fp32 after a power that is off by some ulp, and multiplied by a
// position.
constexpr double kAngleNoise = 4 * 0x1p-24;

// The unit roundoff of a linear op's operands, where the contract rounds them; else 0.
double roundoff_of_operands(RoundingContract contract) {
  if (contract == RoundingContract::tf32) return 0x1p-11;
  if (contract == RoundingContract::operands_bf16) return unit_roundoff(DType::bf16);
  const bool fp16 = contract == RoundingContract::operands_fp16 ||
                    contract == RoundingContract::cache_fp16 ||
                    contract == RoundingContract::flash_fp16;
  return fp16 ? unit_roundoff(DType::f16) : 0;
}

void take_larger(RelativeDifference& largest, const RelativeDifference& other) {
  largest.all = std::max(largest.all, other.all);
  largest.worst = std::max(largest.worst, other.worst);
}

}  // namespace

double relative_of(std::span<const double> a, std::span<const double> b) {
  Distance distance;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) distance.add(a[i], b[i]);
  return distance.relative();
}

// The unit of an element is its own size or the root mean square of its row, whichever is more: a
// small element may be a sum that cancelled.
double worst_of(std::span<const double> a, std::span<const double> b) {
  if (std::ranges::equal(a, b)) return 0;  // of most rows
  Distance of_a, of_b;
  for (size_t i = 0; i < a.size(); ++i) of_a.add(a[i], b[i]), of_b.add(b[i], a[i]);
  if (of_a.nonfinite) return std::numeric_limits<double>::infinity();
  if (of_a.difference == 0) return 0;
  const double rms = root_mean(std::max(of_a.size, of_b.size), of_a.elements);
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i] && std::isfinite(a[i]))
      worst = std::max(worst,
                       std::fabs(a[i] - b[i]) / std::max({std::fabs(a[i]), std::fabs(b[i]), rms}));
  return worst;
}

// The sources of a place are the nearest places before it that both traces show; the ops between
// are hidden, and their number widens the limit.
DiffNoise::DiffNoise(const std::vector<Place>& places,
                     const std::vector<std::vector<size_t>>& inputs, const std::vector<bool>& shown,
                     DType dtype)
    : places_(places), sources_(places.size()), largest_(places.size()) {
  for (size_t i = 0; i < places.size(); ++i) {
    const DType stored = places[i].point->dtype_in(dtype);
    roundoff_.push_back(unit_roundoff(is_float(stored) ? stored : dtype));
    if (!shown[i]) continue;  // it is not compared
    std::set<size_t> found, hidden;
    const auto find_sources = [&](auto& self, size_t place) -> void {
      for (size_t input : inputs[place]) {
        if (shown[input])
          found.insert(input);
        else if (hidden.insert(input).second)
          self(self, input);
      }
    };
    find_sources(find_sources, i);
    const auto chooses = [&](size_t at) { return places[at].point->op == OpKind::top_k; };
    sources_[i] = {{found.begin(), found.end()},
                   static_cast<int>(hidden.size()),
                   std::ranges::any_of(hidden, chooses)};
  }
}

// A contract that rounds operands or tables makes the op as rough as what it rounds them to.
void DiffNoise::widen(const Manifest& declared) {
  const auto rope = declared.contracts.find(std::string(point("attn.q_rope").name));
  const bool tables_as_computed =
      rope != declared.contracts.end() && rope->second == RoundingContract::fused;
  const bool tf32 = run_facts_of(declared).accumulator == "tf32" && declared.dtype == DType::f32;
  for (size_t i = 0; i < places_.size(); ++i) {
    const Point& point = *places_[i].point;
    if (point.op == OpKind::angles && !tables_as_computed)
      roundoff_[i] = std::max(roundoff_[i], unit_roundoff(declared.dtype));
    if (!row_of(point.op).has_matrix && point.op != OpKind::attention) continue;
    const auto found = declared.contracts.find(std::string(point.name));
    if (found != declared.contracts.end())
      roundoff_[i] = std::max(roundoff_[i], roundoff_of_operands(found->second));
    if (tf32) roundoff_[i] = std::max(roundoff_[i], roundoff_of_operands(RoundingContract::tf32));
  }
}

void DiffNoise::enter(size_t place, int32_t request, const RelativeDifference& found) {
  take_larger(largest_[place][request], found);
}

RelativeDifference DiffNoise::inherited(size_t place, int32_t request, bool of_any) const {
  RelativeDifference largest;
  for (size_t source : sources(place))
    for (const auto& [of, found] : largest_[source])
      if (of_any || of == request) take_larger(largest, found);
  return largest;
}

RelativeDifference DiffNoise::limit(size_t place, const RelativeDifference& inherited,
                                    int32_t last_position) const {
  const int hidden = sources_[place].hidden;
  double own = own_noise(roundoff_[place]);
  if (places_[place].point->op == OpKind::angles) own += kAngleNoise * last_position;
  return {// The roundings of ops in a row are independent of each other.
          own * std::sqrt(1.0 + hidden) + kDiffGrowth * inherited.all,
          // An element of attention was seen 7 times its own roundings away, q and k not shown.
          hidden > 0 ? std::numeric_limits<double>::infinity()
                     : kDiffOutlier * (own + kDiffGrowth * inherited.worst)};
}

}  // namespace lockstep
