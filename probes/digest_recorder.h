#pragma once

#include <functional>

#include "probes/recorder.h"

namespace lockstep {

// A sink that keeps the digests of what is wanted, and at choice the tensors, as a Pass: of passes
// on a device those that were made there, so that nothing else has to come from it. Of attn.kv it
// keeps hashes alone. Where it wants some rows of a tensor only, it digests on the host. Its sink
// side is the engine's thread's; one pass at a time is handed on.
class DigestRecorder final : public Sink, private DigestSink {
 public:
  // finished: of passes on a device called from another thread.
  DigestRecorder(Selection selection, bool tensors, std::function<void(Pass&&)> finished);

  bool wants(const Point& point, int layer) const override { return host_.wants(point, layer); }
  DigestSink* digests() override { return whole_rows_ ? this : nullptr; }
  void begin(const PassInfo& pass) override { host_.begin(pass); }
  void record(const Record& record) override { host_.record(record); }
  void end() override { host_.end(); }

 private:
  bool keeps(const Point& point, int) const override { return tensors_ && !point.is_cache(); }
  void take(Pass&& pass) override;

  bool whole_rows_, tensors_;
  std::function<void(Pass&&)> finished_;
  Recorder host_;
};

}  // namespace lockstep
