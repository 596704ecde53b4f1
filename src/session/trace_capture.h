#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "probes/digest_recorder.h"
#include "probes/digest_ring.h"
#include "src/engine/engine.h"
#include "src/session/options.h"
#include "traces/trace.h"

namespace lockstep {

// The manifest that a trace of that engine begins with. The requests are those that were submitted
// so far, without what became of them.
Manifest manifest_of(const Engine& engine, TraceLevel level, const Selection& selection,
                     const std::map<std::string, std::string>& provenance);
// The engine's requests as they are now.
std::vector<RequestInfo> infos_of(const Engine& engine);

// Keeps what an engine shows in the trace of --trace, without judging it: digests, and with --keep
// full the tensors. On a device digests are made there and come to the host beside the passes. One
// thread, the engine's. The trace is unfinished, and says so, unless finish() was called.
class TraceCapture {
 public:
  // Throws Error when there is a trace already, it cannot be made, or --keep is a level that needs
  // a judge.
  TraceCapture(const ObserveOptions& options, const Engine& engine,
               const std::map<std::string, std::string>& provenance);

  Sink& sink() { return *recorder_; }
  const Manifest& manifest() const { return manifest_; }
  // Ends the trace, and says of a device in its manifest and on stderr how often the engine waited
  // for it. Throws Error when the probe failed.
  void finish(const Engine& engine, Probe& probe);

 private:
  Manifest manifest_;
  std::unique_ptr<TraceWriter> writer_;
  std::optional<DigestRecorder> recorder_;
};

}  // namespace lockstep
