#include "src/judge/verdict.h"

namespace lockstep {

const char* name_of(Verdict verdict) {
  static constexpr const char* kNames[kVerdicts] = {
      "bitwise", "rounding", "propagated", "introduced", "nonfinite", "structural", "inconclusive"};
  return kNames[static_cast<size_t>(verdict)];
}

bool is_finding(Verdict verdict) {
  return verdict == Verdict::introduced || verdict == Verdict::nonfinite ||
         verdict == Verdict::structural;
}

int exit_status(const Result& result) {
  if (result.verdict == "clean") return 0;
  return result.verdict == "diverged" ? 1 : 2;
}

}  // namespace lockstep
