// How well a hypothesis explains a node: each wrong element must be nearer to what the hypothesis
// gives than rounding could have it by chance, and right elements must not be made wrong by it. Few
// elements prove little, which the thresholds take into account.
#include "src/causes/fit.h"

#include <algorithm>
#include <cmath>

#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

constexpr double kExplained = 0.95;
// One of so many elements may be lost, as a value that is rounded on the way may lie so near a tie
// that fp32 has it otherwise.
constexpr int64_t kLeastLost = 2000;
// An error over this many times a distance is no longer of that size.
constexpr double kClearly = 3;
// The unit of a distance is never less than a few roundings of fp32, in which an op computes.
constexpr double kOwnArithmetic = 4 * kAccumulatorRoundoff;
// The mean square of distances in units of what one rounding may be off is a third of it; some of
// what hidden stores turned comes on top.
constexpr double kOneRounding = 0.5;
constexpr double kMost = 1e6;  // so that one element does not make up a sum

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// The distance that is allowed beside a value, when the right result may be off by `limit`. Half a
// spacing at the value itself with a thousandth to spare, the op's inner error as its budget has it
// at the right result, and a few fp32 roundings.
double allowed(double value, double want, double limit, DType dtype) {
  const double inner = std::isfinite(want) ? std::max(0.0, limit - ulp(want, dtype) / 2) : 0;
  return ulp(value, dtype) / 2 * (1 + 1.0 / 1024) + inner + kOwnArithmetic * std::fabs(value);
}

bool within(double got, double value, double want, double limit, DType dtype) {
  const double stored = round_to(value, dtype);
  if (same(got, stored)) return true;
  if (!std::isfinite(got) || !std::isfinite(stored)) return false;
  return std::fabs(got - value) <= allowed(value, want, limit, dtype);
}

double squared(double distance) { return std::min(distance * distance, kMost); }

// The square of the distance of what was stored from a value, in what is allowed beside it.
double square_of(const WrongNode& n, double value, size_t i) {
  if (same(n.got[i], round_to(value, n.dtype)) && !std::isfinite(n.got[i])) return 0;
  if (!std::isfinite(n.got[i]) || !std::isfinite(value)) return kMost;
  return squared((n.got[i] - value) / allowed(value, n.want[i], n.limit[i], n.dtype));
}

void add_explained(const WrongNode& n, size_t i, bool is_explained, Fit& fit) {
  fit.elements += is_explained ? 1 : 0;
  fit.numbers += is_explained && !std::isnan(n.got[i]) ? 1 : 0;
}

Fit of_those_over(const WrongNode& n, std::span<const double> h, const std::vector<bool>& over) {
  Fit fit{.of_nodes = 1};
  for (size_t i = 0; i < h.size(); ++i) {
    const bool near = within(n.got[i], h[i], n.want[i], n.limit[i], n.dtype);
    if (over[i])
      ++fit.of_elements, add_explained(n, i, near, fit);
    else
      fit.lost += near ? 0 : 1;
  }
  return fit;
}

Fit of_those_misrounded(const WrongNode& n, std::span<const double> h) {
  Fit fit{.of_nodes = 1};
  for (size_t i = 0; i < h.size(); ++i) {
    const bool hit = same(n.got[i], round_to(h[i], n.dtype));
    if (!same(n.got[i], round_to(n.want[i], n.dtype)))
      ++fit.of_elements, add_explained(n, i, hit, fit);
    else if (!within(n.got[i], h[i], n.want[i], n.limit[i], n.dtype))
      ++fit.lost;
  }
  return fit;
}

// The spread around the hypothesis, not a bound of theory, says what is apart: right fp32 kernels
// differ by their own bits, which are unknown here.
Fit of_those_apart(const WrongNode& n, std::span<const double> h) {
  Fit fit{.of_nodes = 1};
  double squares = 0;
  const auto off = [&](std::span<const double> from, size_t i) {
    return std::fabs(n.got[i] - from[i]) / allowed(h[i], n.want[i], n.limit[i], n.dtype);
  };
  for (size_t i = 0; i < h.size(); ++i) squares += squared(off(h, i));
  const double clear = kClearly * std::sqrt(squares / static_cast<double>(h.size()));
  for (size_t i = 0; i < h.size(); ++i) {
    const bool near = off(h, i) <= clear;
    if (off(n.want, i) > clear)
      ++fit.of_elements, add_explained(n, i, near, fit);
    else if (off(h, i) > 1)
      ++fit.lost;
  }
  return fit;
}

}  // namespace

void Fit::add(const Fit& other) {
  elements += other.elements, of_elements += other.of_elements, lost += other.lost;
  numbers += other.numbers;
  nodes += other.nodes, of_nodes += other.of_nodes;
  squares += other.squares, right_squares += other.right_squares, counted += other.counted;
  refuting += other.refuting;
}

bool Fit::explains() const {
  return of_elements > 0 && lost * kLeastLost <= counted && refuting <= nodes &&
         static_cast<double>(elements) >= kExplained * static_cast<double>(of_elements);
}

bool Fit::explains_beyond(const Fit& other) const {
  const auto left = static_cast<double>(of_elements - other.elements);
  return left <= 0 || static_cast<double>(elements - other.elements) >= kExplained * left;
}

bool is_over(const WrongNode& n, size_t i) {
  return !within(n.got[i], n.want[i], n.want[i], n.limit[i], n.dtype);
}

Fit fit_of(const WrongNode& n, std::span<const double> h) {
  std::vector<bool> over(h.size());
  for (size_t i = 0; i < h.size(); ++i) over[i] = is_over(n, i);
  Fit fit;
  if (std::ranges::count(over, true) > 0)
    fit = of_those_over(n, h, over);
  else
    fit = n.dtype == DType::f32 ? of_those_apart(n, h) : of_those_misrounded(n, h);
  for (size_t i = 0; i < h.size(); ++i) {
    fit.squares += square_of(n, h[i], i);
    fit.right_squares += square_of(n, n.want[i], i);
    ++fit.counted;
  }
  fit.nodes = fit.explains() ? 1 : 0;
  return fit;
}

Fit fit_in_region(const WrongNode& n, std::span<const double> h) {
  Fit fit{.of_nodes = 1};
  const auto off = [&](double value, size_t i) { return std::sqrt(square_of(n, value, i)); };
  for (size_t i = 0; i < h.size(); ++i) {
    const double of_guess = off(h[i], i), of_right = off(n.want[i], i);
    if (of_right > 2)
      ++fit.of_elements, add_explained(n, i, of_guess <= 1, fit);
    else
      fit.lost += of_guess > 2 ? 1 : 0;
    fit.squares += of_guess * of_guess;
    fit.right_squares += of_right * of_right;
    ++fit.counted;
  }
  if (fit.squares > kOneRounding * static_cast<double>(fit.counted)) fit.elements = fit.numbers = 0;
  fit.nodes = fit.explains() ? 1 : 0;
  return fit;
}

Fit fit_of_right(const WrongNode& n, std::span<const double> h) {
  int64_t lost = 0;
  for (size_t i = 0; i < h.size(); ++i)
    lost += within(n.got[i], h[i], n.want[i], n.limit[i], n.dtype) ? 0 : 1;
  return {.refuting = lost * kLeastLost > std::ssize(h) ? 1 : 0};
}

}  // namespace lockstep
