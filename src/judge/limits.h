#pragma once

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/judge/budget.h"
#include "src/judge/reached.h"
#include "src/stats/statistics.h"

namespace lockstep {

// The values that the limits of one op in one dtype are lowered to. The defaults change nothing.
struct OpLimits {
  double inner = 1;  // T1: the share of B beyond the rounding of the store, which itself stays
  double rms = std::numeric_limits<double>::infinity();   // T2, T4
  double share = 1;                                       // T3: before what few elements allow
  double gain = std::numeric_limits<double>::infinity();  // T5
  bool operator==(const OpLimits&) const = default;
};

Reached reached_by(const Measure& measure);  // one node

// The limits that clean runs which reached that much leave room for: `room` times what was reached,
// .02 more for an rms and 5e-4 more for a share; T1 in fp32 only: of 16-bit results one in ten
// thousand shows what its kernel was off before the store, so that the largest of a few runs is far
// from the largest there is. A statistic that was 0 was not measured and limits nothing.
OpLimits limits_above(const Reached& reached, DType dtype, double room);

// The limits of a judgement as data: theory (budget.h, moments.h), lowered where clean runs of an
// engine were measured. A calibration only ever tightens: no run that fails theory is clean, so
// that a bug that is there when the engine is calibrated does not become its own limit.
class Limits {
 public:
  OpLimits of(OpKind op, DType dtype) const;
  // limits_above() with 1.5 times as much room. Where there are limits already the larger stay.
  void learn(OpKind op, DType dtype, const Reached& reached);
  void set(OpKind op, DType dtype, const OpLimits& limits) { ops_[{op, dtype}] = limits; }

  // "theory", or the xxh3 of json().
  std::string name() const;
  std::string json() const;
  // Throws Error with the file's name when it is no such JSON, names an op or a dtype that does not
  // exist, or has a limit that is not a positive number.
  static Limits read(const std::string& path);

  bool operator==(const Limits&) const = default;

 private:
  std::map<std::pair<OpKind, DType>, OpLimits> ops_;
};

// Lowers the budget of the elements whose exact results are `want`.
void tighten(Budget& budget, std::span<const double> want, DType dtype, const OpLimits& limits);
// Lowers the limits of statistics that were made of such elements.
void tighten(std::vector<Statistic>& statistics, const OpLimits& limits);

}  // namespace lockstep
