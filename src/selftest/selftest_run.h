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
#include "src/selftest/selftest_cases.h"
#include "src/selftest/selftest_report.h"

namespace lockstep {

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
