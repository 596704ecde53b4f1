#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/reference.h"
#include "src/judge/limits.h"
#include "tools/controls.h"
#include "tools/selftest_cases.h"
#include "tools/selftest_traces.h"

namespace lockstep {

// What one judged run of a selftest came to.
struct SelftestOutcome {
  std::string name;     // of its case
  std::string verdict;  // "clean" "diverged" "inconclusive"
  std::string story;
  bool nonfinite = false;           // what was found first is
  std::vector<std::string> seeded;  // the faults of the case, as "fault@layer"
  std::vector<std::string> found;   // those of them that have a finding at their own first place
  bool first_exact = false;         // the first finding is at the first place of one of them
  bool exact_class = false;         // of a run with one fault: the op it breaks is exact
  // Of a run with one fault: max |y - right| / B of the op that it breaks, on the same inputs.
  // Nothing: the fault is one of memory or tables, which are exact or wrong; 0: it had no occasion.
  std::optional<double> effect;
  double strain = 0;  // the least multiplier on all limits under which there is no finding
  // What each of Result::others said, by its name.
  struct Other {
    bool alarmed = false, first_exact = false;
  };
  std::map<std::string, Other> others;
};

struct Selftest {
  DType dtype = DType::bf16;
  // clean: of the engine, and the last of the reference in the engine's place.
  std::vector<SelftestOutcome> clean, faults, several;
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

// One Selftest a dtype. Throws Error when a run cannot go on, a trace is none of this model in one
// of these dtypes, or the journal is of another model or
// other limits, or cannot be written.
std::vector<Selftest> selftest(const SelftestRun& run);

}  // namespace lockstep
