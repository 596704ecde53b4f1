#include "src/judge/verdict.h"

namespace lockstep {

bool is_finding(Verdict verdict) {
  return verdict == Verdict::introduced || verdict == Verdict::nonfinite ||
         verdict == Verdict::structural;
}

int exit_status(const Result& result) {
  if (result.verdict == RunVerdict::clean) return 0;
  return result.verdict == RunVerdict::diverged ? 1 : 2;
}

}  // namespace lockstep
