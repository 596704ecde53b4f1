#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "probes/recorder.h"
#include "src/engine/engine.h"
#include "tests/helpers.h"

namespace lockstep {

// Everything that an engine showed while it served some requests.
struct Served {
  std::vector<Pass> passes;
  std::vector<Sequence> sequences;
};

// What is kept of all that an engine shows: copies and digests of every tensor take longer than the
// engine does.
struct Kept {
  Selection selection;
  bool digests = true;
};
// For whoever asks about tokens and passes: no tensor is large.
inline Kept no_tensors() { return {Selection("token", "", "", ""), /*digests=*/false}; }

// Serves the requests with a probe on, on as many pages as they need.
inline Served serve(const Checkpoint& checkpoint, EngineOptions options,
                    const std::vector<Request>& requests, Ops ops = cpu_ops(),
                    Engine::Hooks hooks = {}, const Kept& kept = {}) {
  if (options.pages == 0) options.pages = pages_for(requests, options.page_size);
  Engine engine(checkpoint, std::move(ops), options, std::move(hooks));
  for (const Request& request : requests) engine.submit(request);
  Served served;
  Recorder recorder(kept.selection, kept.digests,
                    [&](Pass pass) { served.passes.push_back(std::move(pass)); });
  Probe probe(&recorder);
  while (engine.step(probe)) {
  }
  EXPECT_EQ(probe.failure(), "");
  EXPECT_EQ(engine.pool().available(), engine.pool().pages()) << "a page was lost";
  for (int32_t id = 0; id < engine.requests(); ++id)
    served.sequences.push_back(engine.sequence(id));
  return served;
}

// The same without its tensors.
inline Served serve_for_tokens(const Checkpoint& checkpoint, const EngineOptions& options,
                               const std::vector<Request>& requests) {
  return serve(checkpoint, options, requests, cpu_ops(), {}, no_tensors());
}

}  // namespace lockstep
