// The judge on trial: a selftest seeds errors of known place and size into a real model of the
// user's, judges them as any run is judged, and counts what it missed and what it accused wrongly.
//
//     controls    something put wrong on the way to the judge: never clean
//     clean       many ways to serve, by chance, and the reference in the engine's place
//     faults      each fault of src/faults, a layer at a time: found, and the right place named
//     effects     errors of a size in ulp about what every judge must find (detection.h)
//     several     two or three faults at once: each found at its own place
//     statistics  made-up kernels that only one statistic can see (statistic_cases.h)
//     traces      of other engines, known to be right: no finding
//
// Runs are independent; on the CPU several threads take one each, on a device they go one by one.
// The journal keeps each outcome as it ends, so a selftest that was killed goes on where it
// stopped.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/reference.h"
#include "src/judge/limits.h"
#include "src/selftest/controls.h"
#include "src/selftest/detection.h"
#include "src/selftest/selftest_cases.h"
#include "src/selftest/selftest_traces.h"
#include "src/selftest/statistic_cases.h"

namespace lockstep {

// The outcome of one judged run of a selftest.
struct SelftestOutcome {
  std::string name;  // of its case
  RunVerdict verdict = RunVerdict::inconclusive;
  std::string story;
  bool nonfinite = false;           // what was found first is
  std::vector<std::string> seeded;  // the faults of the case, as "fault@layer"
  std::vector<std::string> found;   // those of them that have a finding at their own first place
  bool first_exact = false;         // the first finding is at the first place of one of them
  bool exact_class = false;         // of a run with one fault: the op it breaks is exact
  // The size of the one fault or effect of a run, in ulp of the run's dtype: how far it puts a
  // result of the op that it breaks from the right one, on the same inputs (EffectMeter). Nothing:
  // the fault is one of memory or tables, which are exact or wrong; 0: it had no occasion.
  std::optional<double> effect;
  // The size of such an effect that a judge must find (stated_limit): of a fault, in one element.
  double limit = 1;
  double limit_ratio = 0;  // the least multiplier on all limits under which there is no finding
  // The answers of Result::others, by their names.
  struct Other {
    bool alarmed = false, first_exact = false;
  };
  std::map<std::string, Other> others;
};

struct Selftest {
  DType dtype = DType::bf16;
  bool quick = false;
  // clean: of the engine, and the last of the reference in the engine's place.
  std::vector<SelftestOutcome> clean, faults, several;
  std::vector<SelftestOutcome> effects;  // of sizes about what must be found (detection.h)
  std::vector<DetectionLimit> limits;
  std::vector<StatisticCase> statistics;
  std::vector<Control> controls;
  std::vector<TraceCheck> traces;     // of other engines
  std::vector<std::string> left_out;  // faults that the model cannot have, with what they need
};

struct SelftestRun {
  const Checkpoint& checkpoint;
  ReferenceLibrary& reference;
  SelftestPlan plan;
  std::vector<DType> dtypes;
  Limits limits = {};
  std::vector<std::string> traces = {};  // of other engines, known to be right
  // A file that gets a line as each case ends; those it has already are not run again. Empty: none.
  std::string journal;
  int threads = 0;  // runs at once; 0: as many as there are cores
  std::function<void(size_t done, size_t total, const std::string& name)> progress;
};

// Fills in the parts of a selftest that need no run of a fault: `controls`, `limits`, `effects` and
// `statistics`. The quick one takes a few seconds on a small model.
void measure_judge(const SelftestRun& run, Selftest& test);

// One Selftest a dtype. Throws Error when a run cannot go on, a trace is none of this model in one
// of these dtypes, or the journal is of another model or
// other limits, or cannot be written.
std::vector<Selftest> selftest(const SelftestRun& run);

}  // namespace lockstep
