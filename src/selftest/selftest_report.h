// The results of a selftest as data, and its report for people.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/judge/verdict.h"
#include "src/report/document.h"
#include "src/selftest/controls.h"
#include "src/selftest/detection.h"
#include "src/selftest/selftest_traces.h"
#include "src/selftest/statistic_cases.h"

namespace lockstep {

// The outcomes of all runs of one dtype, and what they add up to.
struct Selftest {
  // The outcome of one judged run of a selftest.
  struct Outcome {
    std::string name;  // of its case
    RunVerdict verdict = RunVerdict::inconclusive;
    std::string story;
    bool nonfinite = false;           // what was found first is
    std::vector<std::string> seeded;  // the faults of the case, as "fault@layer"
    std::vector<std::string> found;   // those of them that have a finding at their own first place
    bool first_exact = false;         // the first finding is at the first place of one of them
    bool exact_class = false;         // of a run with one fault: the op it breaks is exact
    // The size of the one fault or effect of a run, in ulp of the run's dtype: how far it puts a
    // result of the op that it breaks from the right one, on the same inputs (EffectMeter).
    // Nothing: the fault is one of memory or tables, which are exact or wrong; 0: it had no
    // occasion.
    std::optional<double> effect;
    // The size of such an effect that a judge must find (stated_limit): of a fault, in one element.
    double limit = 1;
    double limit_ratio = 0;  // the least multiplier on all limits under which there is no finding
    // The answers of Result::others, by their names.
    struct Other {
      bool alarmed = false, first_exact = false;
    };
    std::map<std::string, Other> others;

    // Whether a run that must be clean is not.
    bool is_alarm() const { return verdict != RunVerdict::clean; }
    // Whether every fault of the run has a finding at its own first place.
    bool named_all() const { return found == seeded; }
    // Whether the fault of the run changed nothing.
    bool is_unseeable() const { return effect && *effect == 0; }
  };

  // Runs with one fault or one effect of a known size, by how much it changes at the op that it
  // breaks, in units of what must be found (Outcome::limit).
  struct PowerRow {
    const char* name;
    // The lower bounds (clopper_pearson_lower) of the shares must reach these; 0: they are only
    // told. A quick selftest has too few runs to claim as much as a full one.
    double least_detected, least_exact;
    int64_t runs = 0, detected = 0, exact = 0;
    bool reached() const;
  };

  // The outcomes had all limits been multiplied by a number: too small a one alarms, too large a
  // one misses. detected: of the runs with one fault, by the rows of power().
  struct CurvePoint {
    double multiplier;
    int64_t alarms = 0;  // of the clean runs
    std::vector<int64_t> detected;
  };

  // The judge and the other rules on the same runs: the clean ones, and those with one fault that
  // changes anything.
  struct RuleRow {
    std::string name;
    int64_t clean = 0, alarms = 0;
    int64_t faults = 0, detected = 0, exact = 0;
  };

  DType dtype = DType::bf16;
  bool quick = false;
  // clean: of the engine, and the last of the reference in the engine's place.
  std::vector<Outcome> clean, faults, several;
  std::vector<Outcome> effects;  // of sizes about what must be found (detection.h)
  std::vector<Detection::Limit> limits;
  std::vector<StatisticCase> statistics;
  std::vector<Control> controls;
  std::vector<TraceCheck> traces;     // of other engines
  std::vector<std::string> left_out;  // faults that the model cannot have, with what they need

  // Whether the judge may be trusted: it sees() what it must, no clean run and no right trace
  // alarmed, and the bounds of the power table and of the runs with several faults are reached.
  bool passed() const;
  // Whether what measure_judge() fills in is as it must be: every control failed, what only one
  // statistic can see was seen by it, and every effect was found at the size that is stated.
  bool sees() const;
  // The runs with one fault or one effect.
  std::vector<const Outcome*> with_one() const;
  // The least that the lower bound of the runs with several faults must reach: 6 of 6 have .54, 96
  // of 100 .90.
  double least_named() const { return quick ? 0.50 : 0.90; }
  std::vector<PowerRow> power() const;
  std::vector<CurvePoint> curve() const;
  std::vector<RuleRow> rules() const;
};

// All of it for people, with the verdict as its last line, and as JSON. The data are the runs.
Document document_of(const std::vector<Selftest>& tests);

}  // namespace lockstep
