// Traces of other engines that are known to be right: a judge that accuses one is wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/judge/limits.h"
#include "src/judge/verdict.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// The judgement of a trace that is known to be right: it is of an engine that somebody trusts.
struct TraceCheck {
  std::string name;  // the trace, and under which schema it was judged
  // It may be inconclusive, as a trace need not hold every tensor.
  RunVerdict verdict = RunVerdict::inconclusive;
  std::string story;
  int64_t judged = 0, expected = 0;  // nodes

  // It holds something, and nothing of that was found wrong.
  bool alarmed() const { return verdict == RunVerdict::diverged || judged == 0; }
};

// The dtype of each of the traces. Throws Error for one that is no trace, or of none of `dtypes`.
std::vector<DType> dtypes_of_traces(const std::vector<std::string>& paths,
                                    const std::vector<DType>& dtypes);

// The trace under the schema that it declares, and under what is found when it declares none.
// Throws Error when it is of another model.
std::vector<TraceCheck> check_trace(const std::string& path, const Checkpoint& checkpoint,
                                    const Limits& limits);

}  // namespace lockstep
