#include "src/bench/judged_passes.h"

#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "src/session/device.h"
#include "src/session/judged_run.h"
#include "src/session/reference_library.h"

namespace lockstep {

Request some_request(const ModelConfig& config, int64_t tokens, int64_t max_new, int64_t seed) {
  Request request{.max_new = max_new};
  for (int64_t i = 0; i < tokens; ++i)
    request.prompt.push_back(static_cast<int32_t>((i * 7919 + 13 + seed) % config.vocab));
  return request;
}

void serve(const Checkpoint& checkpoint, const std::vector<Request>& requests,
           EngineOptions options, const Recorder::Copied& copied,
           const std::function<void(Pass)>& visit) {
  options.pages = pages_for(requests, options.page_size);
  Engine engine(checkpoint, ops_of(options.device), options);
  for (const Request& request : requests) engine.submit(request);
  std::optional<Pass> seen;
  Recorder recorder(
      {}, false, [&](Pass pass) { seen = std::move(pass); }, copied);
  Probe probe(&recorder);
  for (bool goes_on = true; goes_on;) {
    goes_on = engine.step(probe);
    check(probe.failure().empty(), "{}", probe.failure());
    // Not by the recorder, whose failures would be the probe's own.
    if (seen) visit(std::move(*seen));
    seen.reset();
  }
}

std::vector<Pass> passes_of(const Checkpoint& checkpoint, const std::vector<Request>& requests,
                            const EngineOptions& options, const Recorder::Copied& copied) {
  std::vector<Pass> passes;
  serve(checkpoint, requests, options, copied,
        [&](Pass pass) { passes.push_back(std::move(pass)); });
  return passes;
}

JudgedModel::JudgedModel(const Checkpoint& checkpoint, const EngineOptions& engine)
    : threads(engine.threads) {
  ReferenceLibrary& library = open_reference();
  const ReferenceOptions options = reference_options(library, engine);
  oracle = library.oracle(checkpoint, options);
  alone = library.model(checkpoint, options, DType::f64);
  exact = library.model(checkpoint, options, DType::f64);
  rounded = library.model(checkpoint, options, DType::bf16);
}

Judge JudgedModel::judge(bool models) const {
  JudgeOptions options;
  options.threads = threads;
  // Declared as `run` does: to find out where another engine rounds takes several tries an op.
  Manifest manifest{.graph = oracle->graph(), .dtype = DType::bf16};
  for (const Place& place : manifest.graph.places())
    manifest.contracts[std::string(place.point->name)] = RoundingContract::fused;
  return {manifest, *oracle, models ? exact.get() : nullptr, models ? rounded.get() : nullptr,
          options};
}

void JudgedModel::check_clean(Judge& judge) {
  const Result result = judge.finish({}, true);
  check(result.verdict == RunVerdict::clean,
        "bench wants a clean run to judge, found one that is {}: {}", name_of(result.verdict),
        result.story);
}

}  // namespace lockstep
