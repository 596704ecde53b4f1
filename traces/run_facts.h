#pragma once

#include <cstdint>
#include <string>

#include "traces/trace.h"

namespace lockstep {

// The facts of a run that decide how its trace is judged, read once out of the texts that its
// provenance keeps them as.
struct RunFacts {
  int64_t page_size = 0;       // positions; 0: not declared
  int64_t pages = 0;           // in the pool; 0: not declared
  int64_t sliding_window = 0;  // keys that a query of the narrowest layer sees; 0: all of them
  std::string accumulator;     // of linear ops, as declared: "fp32", "tf32"; empty: not declared
  bool one_op = false;         // the trace holds the inputs of one op, kept before it ran
};

// The text of the provenance that says who computes products: "oneDNN 2.6.3", "cuBLASLt".
inline constexpr const char* kMatmulFact = "matmul";

// Is there where the engine computed several ops at once, of which none can be put right alone.
inline constexpr const char* kFusedFact = "fused_ops";

// The executor that shows what it computed when all of a pass is, "instructions" or "persistent",
// which takes no --modes. Not there where ops are computed one by one.
inline constexpr const char* kExecutorFact = "executor";

// Throws Error when the trace declares a size that is none.
RunFacts run_facts_of(const Manifest& manifest);

}  // namespace lockstep
