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

// Serves the requests with a probe on, on as many pages as they need.
inline Served serve(const Checkpoint& checkpoint, EngineOptions options,
                    const std::vector<Request>& requests, Ops ops = cpu_ops(),
                    Engine::Hooks hooks = {}) {
  if (options.pages == 0) options.pages = pages_for(requests, options.page_size);
  Engine engine(checkpoint, std::move(ops), options, std::move(hooks));
  for (const Request& request : requests) engine.submit(request);
  Served served;
  Recorder recorder({}, true, [&](Pass pass) { served.passes.push_back(std::move(pass)); });
  Probe probe(&recorder);
  while (engine.step(probe)) {
  }
  EXPECT_EQ(probe.failure(), "");
  EXPECT_EQ(engine.pool().available(), engine.pool().pages()) << "a page was lost";
  for (int32_t id = 0; id < engine.requests(); ++id)
    served.sequences.push_back(engine.sequence(id));
  return served;
}

}  // namespace lockstep
