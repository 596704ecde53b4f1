#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "probes/recorder.h"
#include "src/engine/engine.h"

namespace lockstep {

inline std::string data_path(const std::string& name) {
  return std::string(LOCKSTEP_TEST_DATA) + "/" + name;
}

// The sentence of the Error that `body` throws; fails the test when it throws none.
template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "an Error was expected";
  return "";
}

// Everything that an engine showed while it served some requests.
struct Served {
  std::vector<Pass> passes;
  std::vector<Sequence> sequences;
};

// Serves the requests with a probe on, on as many pages as they need.
inline Served serve(const Checkpoint& checkpoint, EngineOptions options,
                    const std::vector<Request>& requests, Ops ops = cpu_ops(),
                    Engine::PassHook hook = {}) {
  if (options.pages == 0) options.pages = pages_for(requests, options.page_size);
  Engine engine(checkpoint, std::move(ops), options, std::move(hook));
  for (const Request& request : requests) engine.submit(request);
  Served served;
  Recorder recorder({}, true, [&](Pass pass) { served.passes.push_back(std::move(pass)); });
  Probe probe(&recorder);
  while (engine.step(probe)) {
  }
  EXPECT_EQ(probe.failure(), "");
  EXPECT_EQ(engine.pool().free(), engine.pool().pages()) << "a page was lost";
  for (int32_t id = 0; id < engine.requests(); ++id)
    served.sequences.push_back(engine.sequence(id));
  return served;
}

// `count` token ids below `vocab` that look like nothing special, always the same for one seed.
inline std::vector<int32_t> some_tokens(int64_t count, int64_t vocab, uint64_t seed = 1) {
  std::vector<int32_t> tokens;
  for (uint64_t state = seed * 0x9e3779b97f4a7c15u; std::ssize(tokens) < count;) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

}  // namespace lockstep
