#include "src/judge/verdict.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace lockstep {

const char* name_of(Verdict verdict) {
  static constexpr const char* kNames[kVerdicts] = {
      "bitwise", "rounding", "propagated", "introduced", "nonfinite", "structural", "inconclusive"};
  return kNames[static_cast<size_t>(verdict)];
}

namespace {

constexpr const char* kRunVerdicts[] = {"clean", "diverged", "inconclusive"};

}  // namespace

const char* name_of(RunVerdict verdict) { return kRunVerdicts[static_cast<size_t>(verdict)]; }

RunVerdict run_verdict_from(std::string_view name) {
  const auto found = std::ranges::find(kRunVerdicts, name);
  check(found != std::end(kRunVerdicts), "'{}' is no verdict: clean, diverged or inconclusive",
        name);
  return static_cast<RunVerdict>(found - kRunVerdicts);
}

bool is_finding(Verdict verdict) {
  return verdict == Verdict::introduced || verdict == Verdict::nonfinite ||
         verdict == Verdict::structural;
}

int exit_status(const Result& result) {
  if (result.verdict == RunVerdict::clean) return 0;
  return result.verdict == RunVerdict::diverged ? 1 : 2;
}

}  // namespace lockstep
