#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "probes/recorder.h"
#include "src/judge/background.h"
#include "src/judge/judge.h"

namespace lockstep {

// Judges passes while they are computed: as soon as a layer has been shown, its places are judged,
// and tensors that nothing reads later are let go. So memory holds the tensors of a layer or two,
// however many layers there are. A layer that lacks tensors waits until the pass has ended, and so
// do those after it.
class LiveJudge final : public Sink {
 public:
  struct Options {
    bool digests = false;  // as of a Recorder
    // Whether a thread of its own judges a layer while the next one is computed and shown; else the
    // engine waits. A pass has been judged when it ends. What a call here throws may be of the
    // layer before.
    bool beside = false;
    // The same as of a Recorder; may be empty.
    Recorder::Copied copied;
    // By that thread, but for the last one: tensors whose data stays until the pass has ended,
    // given what of it is a finding so far, its own place included. Empty: none.
    std::function<bool(const RecordedTensor& tensor, const std::vector<NodeId>& flags)> keeps;
    // Called after some places of a pass were judged (Judge::has_just_judged), with what of them is
    // a finding; what they read is there. May be empty.
    std::function<void(const Pass& so_far, const std::vector<NodeId>& flags)> judged;
    // Called after the pass, with all of its findings.
    std::function<void(Pass pass, const std::vector<NodeId>& flags)> ended;
  };

  // The judge is borrowed.
  LiveJudge(Judge& judge, Options options);

  bool wants(const Point& point, int layer) const override { return recorder_.wants(point, layer); }
  void begin(const PassInfo& pass) override;
  void record(const Record& record) override;
  void end() override;

 private:
  void take(Pass pass);
  void judge_what_is_there();
  void judge_part();
  void let_go();

  Judge& judge_;
  Options options_;
  Recorder recorder_;  // of what was shown since the last take()
  Pass pass_;          // that is judged, as far as it was taken
  int layer_ = -1;     // that is shown
  std::vector<NodeId> flags_;
  std::unique_ptr<Background> thread_;  // ends before all above; null: it is none of its own
};

}  // namespace lockstep
