// The quantiles and bounds are Boost.Math's; this file adds only how they are used. T3 has a limit
// by Bernstein's inequality, which needs nothing of the elements but their mean chance; T2 one by
// the chi-square quantile with the degrees of freedom that independent elements with the same
// scatter would have; T5 is the lesser of two numbers, so that a gain is a finding only when it is
// larger than a kernel may have and than chance makes it.
#include "src/stats/moments.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/chi_squared.hpp>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/poisson.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "src/stats/mutant.h"

namespace lockstep {
namespace {

namespace policies = boost::math::policies;
// Counts are rounded up, so that a tail is never heavier than was asked for. No argument here is
// out of range, and fp64 is exact enough for a limit.
using Exact = policies::policy<policies::discrete_quantile<policies::integer_round_up>,
                               policies::promote_double<false>>;
using ChiSquared = boost::math::chi_squared_distribution<double, Exact>;
using Poisson = boost::math::poisson_distribution<double, Exact>;
using Binomial = boost::math::binomial_distribution<double, Exact>;
using Normal = boost::math::normal_distribution<double, Exact>;

constexpr double kClopperPearsonTail = 0.025;
constexpr int64_t kSeriesDegrees = 1 << 20;

// The share of right results that a limit may refuse.
double risk_of(double tail) { return is_mutant(Mutant::many_false_alarms) ? 1e-2 : tail; }

Statistic misrounds_of(const Moments& m, double tail) {
  return {
      StatisticKind::misrounds, m.share(), m.most_misrounds(tail),
      fmt::format("{} of {} elements are not the exact result rounded", m.misrounded, m.elements)};
}

// Standard errors of the gain as the rows differ in it. The sum of (c_r - g p_r)^2 over rows,
// expanded: it is the variance of sum c_r - g sum p_r where rows are independent, whatever elements
// of a row have in common.
double student(const Moments& m, double gain) {
  const double squares = m.cross_squares - 2 * gain * m.cross_power + gain * gain * m.power_squares;
  if (squares > 0) return std::fabs(m.cross) / std::sqrt(squares);
  return m.cross == 0 ? 0 : std::numeric_limits<double>::infinity();
}

// The deviations of a sum of independent terms that are as likely of either sign.
double deviations_of(const Moments& m) {
  return m.cross_scatter > 0 ? std::fabs(m.cross) / std::sqrt(m.cross_scatter) : 0;
}

void add_gain(const Moments& m, DType dtype, int64_t least_rows,
              std::vector<Statistic>& statistics) {
  const bool clustered = dtype == DType::f32;
  if (!(m.power > 0) || !(m.gain > 0) || (clustered && m.rows < least_rows)) return;
  const double gain = m.cross / m.power;
  const double z = clustered ? student(m, gain) : deviations_of(m);
  const double deviations = z / (clustered ? kGainStudent : kGainDeviations);
  const double most = gain > 0 ? m.growth : m.gain;
  statistics.push_back(
      {StatisticKind::gain, std::min(std::fabs(gain) / most, deviations), 1,
       fmt::format("everything is {:.3g} of itself too {}, {:.3g} standard errors from 0",
                   std::fabs(gain), gain > 0 ? "large" : "small", z)});
}

}  // namespace

double chi_square_quantile(int64_t n, double tail) {
  const auto degrees = static_cast<double>(n);
  if (n <= kSeriesDegrees) return quantile(complement(ChiSquared(degrees), tail));
  // The series of Boost takes too many terms here, and from 1e11 degrees on it throws. Wilson and
  // Hilferty's cube (1931) is within 2e-8 of it.
  const double k = 2 / (9 * degrees);
  const double root = 1 - k + quantile(complement(Normal(), tail)) * std::sqrt(k);
  return degrees * root * root * root;
}

int64_t poisson_quantile(double mean, double tail) {
  if (!(mean > 0)) return 0;
  return static_cast<int64_t>(quantile(complement(Poisson(mean), tail)));
}

double clopper_pearson_lower(int64_t k, int64_t n) {
  if (k <= 0) return 0;
  return Binomial::find_lower_bound_on_p(static_cast<double>(n), static_cast<double>(k),
                                         kClopperPearsonTail);
}

double clopper_pearson_upper(int64_t k, int64_t n) {
  // An upper bound of successes is a lower one of failures.
  return n <= 0 ? 1 : 1 - clopper_pearson_lower(n - k, n);
}

double rms_limit(int64_t n, double tail) {
  return std::max(1.10, 1.05 * root_mean(chi_square_quantile(n, tail), n));
}

double share_limit(int64_t n, double share, double tail) {
  // Bernstein for a sum of n chances with mean p: P(sum - n p > t) <= exp(-t^2 / (2 (n p + t /
  // 3))). Solved for t at that risk L: t = L/3 + sqrt((L/3)^2 + 2 n p L).
  const double log_risk = -std::log(tail);
  const double expected = static_cast<double>(n) * share;
  const double third = log_risk / 3;
  return share +
         (third + std::sqrt(third * third + 2 * expected * log_risk)) / static_cast<double>(n);
}

double Scatter::rms() const {
  return std::sqrt(squares / (static_cast<double>(elements) + std::max(0.0, due)));
}

// n^2 / (n + pairs + common^2) is what a chi-square with as large a variance, relative to its mean,
// has for degrees (Satterthwaite 1946).
int64_t Scatter::degrees() const {
  const auto n = static_cast<double>(elements);
  return std::max<int64_t>(1, static_cast<int64_t>(n * n / (n + pairs + common * common)));
}

double Scatter::most_misrounds(double tail) const {
  return share_limit(elements, std::min(1.0, may_misround / static_cast<double>(elements)), tail);
}

void Moments::add(const Moments& other) {
  Scatter::add(other);
  offset += other.offset;
  cross += other.cross;
  cross_scatter += other.cross_scatter;
  power += other.power;
  // Both are limits: of several rows the widest.
  gain = std::max(gain, other.gain);
  growth = std::max(growth, other.growth);
  rows += other.rows;
  cross_squares += other.cross_squares;
  cross_power += other.cross_power;
  power_squares += other.power_squares;
}

void Moments::end_row() {
  rows = 1;
  cross_squares = cross * cross;
  cross_power = cross * power;
  power_squares = power * power;
}

std::vector<Statistic> Moments::statistics(DType dtype, double tail) const {
  if (elements < kLeastElements) return {};
  tail = risk_of(tail);
  std::vector<Statistic> statistics{{StatisticKind::rms_error, rms(), rms_limit(degrees(), tail),
                                     fmt::format("over {} elements", elements)}};
  if (dtype != DType::f32) statistics.push_back(misrounds_of(*this, tail));
  add_gain(*this, dtype, kGainRows, statistics);
  return statistics;
}

std::optional<Statistic> Moments::gain_over(DType dtype) const {
  std::vector<Statistic> gains;
  add_gain(*this, dtype, kFewGainRows, gains);
  if (gains.empty() || gains.front().passes(1)) return std::nullopt;
  return gains.front();
}

void drop_missing(std::vector<Statistic>& statistics) {
  static constexpr Mutant kMissing[] = {Mutant::no_t0, Mutant::no_t1, Mutant::no_t2,
                                        Mutant::no_t3, Mutant::no_t4, Mutant::no_t5};
  // T0 to T5 stand in the order of StatisticKind.
  for (size_t i = 0; i < std::size(kMissing); ++i)
    if (is_mutant(kMissing[i]))
      std::erase_if(statistics, [kind = static_cast<StatisticKind>(i)](const Statistic& statistic) {
        return statistic.kind == kind;
      });
}

double Moments::offset_deviations() const {
  return elements > 0 ? offset / std::sqrt(elements) : 0;
}

template <typename Value, typename Limit>
Slices::Worst Slices::worst_by(Value value_of, Limit limit_of) const {
  Worst worst;
  const Named* at = nullptr;
  for (const Named& slice : slices_) {
    const double value = value_of(*slice.scatter), limit = limit_of(*slice.scatter);
    if (at && !(value / limit > worst.statistic.value / worst.statistic.limit)) continue;
    at = &slice;
    worst.statistic.value = value;
    worst.statistic.limit = limit;
  }
  if (!at) return worst;
  worst.scatter = at->scatter;
  worst.statistic.slice = fmt::format("{} {}", at->axis, at->key);
  return worst;
}

Slices::Worst Slices::scattered(double tail) const {
  // Bonferroni: of k parts each has a k-th of the risk.
  tail = risk_of(tail) / std::max(1.0, static_cast<double>(slices_.size()));
  std::map<int64_t, double> limits;  // slices come in few sizes
  Worst worst = worst_by([](const Scatter& s) { return s.rms(); },
                         [&](const Scatter& s) {
                           double& limit = limits[s.degrees()];
                           if (limit == 0) limit = rms_limit(s.degrees(), tail);
                           return limit;
                         });
  worst.statistic.kind = StatisticKind::worst_slice;
  return worst;
}

Slices::Worst Slices::misrounded(double tail) const {
  tail = risk_of(tail) / std::max(1.0, static_cast<double>(slices_.size()));
  Worst worst =
      worst_by([](const Scatter& s) { return s.share(); },
               // A part without a misround cannot be the worst, and needs no limit.
               [&](const Scatter& s) { return s.misrounded == 0 ? 1.0 : s.most_misrounds(tail); });
  worst.statistic.kind = StatisticKind::misrounds;
  if (worst.scatter)
    worst.statistic.slice += fmt::format(": {} of {} elements are not the exact result rounded",
                                         worst.scatter->misrounded, worst.scatter->elements);
  return worst;
}

bool DistinctMoments::add(uint64_t row_hash, const Moments& row) {
  if (!insert(row_hash)) return false;
  sum_.add(row);
  return true;
}

// Three quarters of the places are taken at most, so that a search ends soon.
bool DistinctMoments::insert(uint64_t row_hash) {
  if (row_hash == 0) row_hash = 1;  // 0 stands for a free place
  if (4 * (rows_ + 1) > 3 * std::ssize(places_)) {
    const std::vector<uint64_t> before =
        std::exchange(places_, std::vector<uint64_t>(std::max<size_t>(8, 2 * places_.size())));
    rows_ = 0;
    for (const uint64_t hash : before)
      if (hash != 0) insert(hash);
  }
  // Rows that a pool takes by their hash have low bits alike: all bits decide on the place.
  const size_t mask = places_.size() - 1;  // of a power of two
  size_t at = row_hash * 0x9E3779B97F4A7C15 >> 32 & mask;
  while (places_[at] != 0 && places_[at] != row_hash) at = (at + 1) & mask;
  if (places_[at] == row_hash) return false;
  places_[at] = row_hash;
  ++rows_;
  return true;
}

}  // namespace lockstep
