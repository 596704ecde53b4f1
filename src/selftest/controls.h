// Positive controls: something put wrong between the engine and the judge, which must never come
// out clean. They show that the judge looks at all, before any share of found faults is believed.
#pragma once

#include <string>
#include <vector>

#include "reference/reference.h"
#include "src/engine/engine.h"
#include "src/judge/verdict.h"
#include "src/session/op_watch.h"
#include "traces/trace.h"

namespace lockstep {

// The passes of a clean engine, as a judge takes them. It declares one rounding of every op, as a
// run does: a judge that may choose takes a wrong result for another contract's. It owns the
// tensors, in host memory.
struct Seen {
  Manifest manifest;
  std::vector<Pass> passes;
};
// watch: stands around the ops; borrowed, may be null. Throws Error of a pass that could not be
// recorded.
Seen serve_clean(const Checkpoint& checkpoint, const EngineOptions& options,
                 const std::vector<Request>& requests, OpWatch* watch = nullptr);

// A judgement that must not come out clean: a judge that passes it has proved nothing by passing
// anything else.
struct Control {
  std::string name;
  RunVerdict verdict = RunVerdict::inconclusive;  // what came out
  bool failed = false;                            // as it must
};

// Serves the requests once with a clean engine and judges what was seen with something put wrong on
// the way to the judge: the limits times 0, another dtype declared, a part of the run missing, a
// point renamed, two layers swapped, an exact result halved, a NaN, a last bit of what is exact,
// and a rounding more than was declared. When the run is not clean before that, this is the one
// control, which has not failed as it must. Throws Error when the model has a single layer.
std::vector<Control> positive_controls(const Checkpoint& checkpoint, ReferenceLibrary& reference,
                                       const EngineOptions& engine,
                                       const std::vector<Request>& requests);

// The other way round: the passes that a clean engine makes of the requests, computed by the
// reference in the dtype of the run and judged as an engine's. It must come out clean, or else the
// reference is the suspect.
Result reference_in_place(const Checkpoint& checkpoint, ReferenceLibrary& reference,
                          const EngineOptions& engine, const std::vector<Request>& requests);

}  // namespace lockstep
