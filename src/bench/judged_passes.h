// Passes of an engine that a benchmark judges.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "src/engine/engine.h"
#include "src/judge/judge.h"

namespace lockstep {

// So many prompt tokens, spread over the vocabulary; seed: others.
Request some_request(const ModelConfig& config, int64_t tokens, int64_t max_new, int64_t seed);

// Serves those requests with pages for all of them, and calls `visit` with each pass once it has
// ended. copied: as of a Recorder. Throws Error as the engine does.
void serve(const Checkpoint& checkpoint, const std::vector<Request>& requests,
           EngineOptions options, const Recorder::Copied& copied,
           const std::function<void(Pass)>& visit);
// The passes, all kept.
std::vector<Pass> passes_of(const Checkpoint& checkpoint, const std::vector<Request>& requests,
                            const EngineOptions& options, const Recorder::Copied& copied);

// The oracle and the models beside it of a checkpoint, which must outlive them, for the judges of
// an engine's passes, one at a time. Throws Error when this build has no reference.
struct JudgedModel {
  JudgedModel(const Checkpoint& checkpoint, const EngineOptions& engine);

  // A judge of passes in bf16 that round as the engine does. It borrows the oracle and the models.
  // models: with those beside it, as in a run.
  Judge judge(bool models) const;
  // Ends the run. Throws Error when it is not clean: what such a pass cost says nothing.
  static void check_clean(Judge& judge);

  int threads;
  std::unique_ptr<Oracle> oracle;
  // The fp64 model alone, and the two that a run has beside the judge.
  std::unique_ptr<ReferenceModel> alone, exact, rounded;
};

}  // namespace lockstep
