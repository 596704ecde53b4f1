#pragma once

#include "tests/judge/fake_model.h"

namespace lockstep {

// The fake model, which shows a pass a layer at a time.
class InSteps : public ReferenceModel {
 public:
  static constexpr int kLayers = 2;

  explicit InSteps(DType dtype) : model_(dtype) {}
  void run(const PassInfo& pass, Probe& probe) override { model_.run(pass, probe); }
  void begin(const PassInfo& pass, Probe& probe) override {
    made_ = pass_of(model_, pass);
    probe_ = &probe;
    next_ = 0;
    probe.begin(pass);
  }
  void advance(int through) override {
    for (; next_ < made_.tensors.size() && step_of(next_) <= through; ++next_) {
      const RecordedTensor& t = made_.tensors[next_];
      if (probe_->wants(*t.point, t.layer)) (*probe_)(*t.point, t.layer, t.rows, t.data);
    }
    if (through == kLayers) probe_->end();
  }
  void follow(Routes) override {}
  void end(int32_t) override {}

 private:
  int step_of(size_t i) const {
    const int layer = made_.tensors[i].layer;
    return layer < 0 && i > 0 ? kLayers : layer;  // embed is the first
  }

  FakeModel model_;
  Pass made_;
  Probe* probe_ = nullptr;
  size_t next_ = 0;
};

}  // namespace lockstep
