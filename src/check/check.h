// A run held to a baseline of the same requests, for CI.
//
//   baseline file ---> force(requests) ---> judged run ---> compare() ---> CheckResult
//                      (its tokens)         + RunBits
//
// Only what rounding cannot do fails: an op that introduces an error, numbers that are not finite,
// less looked at than before. That bits are others, as on another CPU, is a note.
//
// The room of regressions. A baseline is a small text file that is kept with the code that it
// guards: per op class how near the limits were reached, per point how many nodes were judged and a
// hash of their bits, per request its tokens. compare() holds a run to it, and notes.cc says what
// is another and no failure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/base/names.h"
#include "src/check/baseline.h"
#include "src/session/judged_run.h"

namespace lockstep {

// Whether an op class was judged by numbers: not one that must be exact.
inline bool is_measured(const Reached& reached) { return !within(reached.rms, 0); }

struct CheckResult {
  enum class Verdict : uint8_t { pass, fail, inconclusive };

  enum class Kind : uint8_t {
    // These fail.
    introduced,
    nonfinite,
    structural,
    coverage,
    // These are notes.
    bits,
    provenance,
    drift,
    flip,
    drawn,
  };

  // How near the nodes of an op class come to their limits, beside the baseline.
  struct ClassDrift {
    OpKind op = OpKind::gather;
    int64_t nodes = 0, baseline_nodes = 0;  // judged
    int64_t findings = 0;
    Reached reached, baseline;
    OpLimits limits;
  };

  // One thing that fails a check, or a note of it.
  struct Item {
    Kind kind = Kind::introduced;
    std::optional<OpKind> op_class;  // none: it is of no class alone
    std::string says;                // a sentence that names the place
  };

  Verdict verdict = Verdict::inconclusive;
  std::string story;         // one sentence
  std::string baseline;      // its path
  std::string baseline_sha;  // git's, of the build that made it; "": none is known
  bool updated = false;      // this run became the baseline
  int64_t forced = 0;        // tokens that requests were forced to
  std::vector<Item> failures, notes;
  std::vector<ClassDrift> classes;
  Result run;
};
template <>
inline constexpr auto kNamesOf<CheckResult::Verdict> = std::to_array<const char*>({"pass", "fail",
                                                                                   "inconclusive"});
template <>
inline constexpr auto kNamesOf<CheckResult::Kind> =
    std::to_array<const char*>({"introduced", "nonfinite", "structural", "coverage", "bits",
                                "provenance", "drift", "flip", "drawn"});

// 0 pass, 1 fail, 2 inconclusive.
int exit_status(const CheckResult& result);

struct CheckOptions {
  std::string path;        // of the baseline
  double max_drift = 1.5;  // a class that comes this many times nearer to a limit is a note; >= 1
};

// read_baseline(), of a run of these requests. Throws Error, which says to use --update, unless the
// baseline is of this model in this dtype and of these requests.
Baseline read_baseline_for(const std::string& path, const Checkpoint& checkpoint, DType dtype,
                           const std::vector<Request>& requests);

// Serves the run's requests again, those that take the most likely token forced to the baseline's,
// so that two versions of an engine compare past a token that flips. Requests that draw, or have
// several samples, are served freely: forced ones would leave drawing unjudged. The baseline is one
// for these requests.
CheckResult check_against(const Baseline& baseline, JudgedRun run, const CheckOptions& options);

// Serves the requests, and when the run is clean writes it as the baseline; else the file stays.
// Throws Error, before it serves, where the file there is no baseline.
CheckResult update_baseline(JudgedRun run, const CheckOptions& options);

}  // namespace lockstep
