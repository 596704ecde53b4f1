#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "probes/probe.h"
#include "probes/recorder.h"
#include "probes/selection.h"
#include "src/session/options.h"
#include "traces/trace.h"

namespace lockstep {

// Keeps on the disk what a chosen op is about to read, before it is launched: when the op then
// hangs, faults or ends the process, its inputs are left behind as a trace of one pass. Each chosen
// op replaces the file of the one before; its provenance says which op that is, as `before`. On a
// device it waits for the ops before and copies their results, so that a run with it is slow.
class RecordBefore final : public Sink {
 public:
  // points: globs over the points that the ops make (Selection's). trace: of --trace, beside which
  // the file lies (X.trace, X.before.h5). device: where the ops run. Throws Error when there is
  // such a file already.
  RecordBefore(const std::string& points, const std::string& trace, Device device);

  const std::string& path() const { return path_; }
  // Once, with a table that must not outlive this and an engine that has not begun.
  void wrap(Ops& ops);
  void expect(const Manifest& manifest);

  bool wants(const Point& point, int layer) const override;
  void begin(const PassInfo& pass) override;
  void record(const Record& record) override;
  void end() override {}

  // All ops came back: the file goes.
  void finish();

 private:
  void before(const OpContext& context);

  Selection chosen_;
  std::string path_;
  Device device_;
  Manifest manifest_;
  std::vector<Place> inputs_;  // of all chosen ops
  Pass pass_;                  // what was shown of them so far
  Place last_;                 // of this pass, whose inputs are on the disk
};

// Makes what --record-before names; null when it was not given. With it ops are launched one by
// one: the session has no graphs any more, and Error is thrown when `model` insists on them.
std::unique_ptr<RecordBefore> record_before_of(const ObserveOptions& options,
                                               const ModelOptions& model, EngineOptions& engine);

}  // namespace lockstep
