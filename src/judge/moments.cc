#include "src/judge/moments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

// z with P(standard normal > z) = tail, by Newton steps on the logarithm of the tail.
double normal_quantile(double tail) {
  double z = std::sqrt(-2 * std::log(tail));
  for (int i = 0; i < 30; ++i) {
    const double upper = 0.5 * std::erfc(z / std::sqrt(2.0));
    const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * M_PI);
    if (!(density > 0) || !(upper > 0)) {
      z *= 0.9;  // the start lies beyond what fp64 can show
      continue;
    }
    z += upper / density * std::log(upper / tail);
  }
  return z;
}

Statistic misrounds_of(const Moments& m) {
  const auto n = static_cast<double>(m.elements);
  const double share = std::min(m.may_misround / n, m.misrounds);
  return {
      "T3", static_cast<double>(m.misrounded) / n, share_limit(m.elements, share, kFalseAlarm),
      fmt::format("{} of {} elements are not the exact result rounded", m.misrounded, m.elements)};
}

// Standard errors of the gain as the rows differ in it.
double student(const Moments& m, double gain) {
  const double squares = m.cross_squares - 2 * gain * m.cross_power + gain * gain * m.power_squares;
  if (squares > 0) return std::fabs(m.cross) / std::sqrt(squares);
  return m.cross == 0 ? 0 : std::numeric_limits<double>::infinity();
}

// Of a sum of independent terms that are as likely of either sign.
double deviations_of(const Moments& m) {
  return m.cross_scatter > 0 ? std::fabs(m.cross) / std::sqrt(m.cross_scatter) : 0;
}

void add_gain(const Moments& m, DType dtype, std::vector<Statistic>& statistics) {
  const bool clustered = dtype == DType::f32;
  if (!(m.power > 0) || !(m.gain > 0) || (clustered && m.rows < kGainRows)) return;
  const double gain = m.cross / m.power;
  const double z = clustered ? student(m, gain) : deviations_of(m);
  const double deviations = z / (clustered ? kGainStudent : kGainDeviations);
  statistics.push_back({"T5", std::min(std::fabs(gain) / m.gain, deviations), 1,
                        fmt::format("everything is {:.3g} too {}, {:.3g} standard errors from 0",
                                    std::fabs(gain), gain > 0 ? "large" : "small", z)});
}

}  // namespace

double chi_square_quantile(int64_t n, double tail) {
  const double k = 2.0 / (9.0 * static_cast<double>(n));
  const double cube_root = 1 - k + normal_quantile(tail) * std::sqrt(k);
  return static_cast<double>(n) * cube_root * cube_root * cube_root;
}

double rms_limit(int64_t n, double tail) {
  return std::max(1.10, 1.05 * std::sqrt(chi_square_quantile(n, tail) / static_cast<double>(n)));
}

double share_limit(int64_t n, double share, double tail) {
  const double log_risk = -std::log(tail);
  const double expected = static_cast<double>(n) * share;
  const double third = log_risk / 3;
  return share +
         (third + std::sqrt(third * third + 2 * expected * log_risk)) / static_cast<double>(n);
}

void Moments::add(const Moments& other) {
  Scatter::add(other);
  misrounded += other.misrounded;
  may_misround += other.may_misround;
  offset += other.offset;
  cross += other.cross;
  cross_scatter += other.cross_scatter;
  power += other.power;
  gain = std::max(gain, other.gain);
  misrounds = std::max(misrounds, other.misrounds);
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

double Scatter::rms() const {
  return std::sqrt(squares / (static_cast<double>(elements) + std::max(0.0, due)));
}

int64_t Scatter::degrees() const {
  const auto n = static_cast<double>(elements);
  return std::max<int64_t>(1, static_cast<int64_t>(n * n / (n + pairs)));
}

std::vector<Statistic> Moments::statistics(DType dtype) const {
  if (elements < kLeastElements) return {};
  std::vector<Statistic> statistics{
      {"T2", rms(), rms_limit(degrees(), kFalseAlarm), fmt::format("over {} elements", elements)}};
  if (dtype != DType::f32) statistics.push_back(misrounds_of(*this));
  add_gain(*this, dtype, statistics);
  return statistics;
}

double Moments::offset_deviations() const {
  return elements > 0 ? offset / std::sqrt(static_cast<double>(elements)) : 0;
}

bool DistinctMoments::add(uint64_t row_hash, const Moments& row) {
  if (!rows_.insert(row_hash).second) return false;
  sum_.add(row);
  return true;
}

}  // namespace lockstep
