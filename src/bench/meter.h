// Where the time of a pass goes, seen from outside the engine through the table of ops. Used by the
// benchmark's thread alone.
#pragma once

#include <map>

#include "kernels/ops.h"
#include "src/model/batch.h"

namespace lockstep {

// A meter of an engine's passes for a benchmark: where the time goes, and whether what it computed
// is worth timing. It is a table of ops around another one, and a hook before each pass.
class PassMeter {
 public:
  // The times of one pass, in seconds.
  struct Pass {
    double matmul = 0;     // inside products with weights
    double attention = 0;  // inside attention
    double checking = 0;   // the meter's own: to be taken off the pass
    uint64_t logits = 0;   // hash of the bytes of all its logits
    bool finite = true;    // no NaN or infinity in them
  };

  explicit PassMeter(Ops ops);
  PassMeter(const PassMeter&) = delete;  // the tables that it gave out point to it
  PassMeter& operator=(const PassMeter&) = delete;

  // The ops, watched. Must not outlive the meter.
  Ops ops();
  // For Engine: begins a pass. Fills every output of the pass before with NaN, so that an op that
  // leaves some of its output unwritten shows.
  void before_pass();
  const Pass& pass() const { return pass_; }

 private:
  void keep(const TensorView& out) { outputs_[out.data] = out; }
  void keep(const KvCache&) {}  // later passes read it
  void see_logits(const TensorView& logits);

  Ops inner_;
  Pass pass_;
  std::map<void*, TensorView> outputs_;  // of the pass, by address
};

}  // namespace lockstep
