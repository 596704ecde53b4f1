#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/base/shared_copy.h"
#include "probes/layer_watch.h"
#include "probes/only.h"
#include "probes/recorder.h"
#include "src/judge/background.h"
#include "src/judge/oracle.h"

namespace lockstep {

// A pass of a model beside the one that is judged, computed layer by layer as the judge comes to
// them. Of what the model shows, only what was not dropped is held.
class ModelPass final : private Sink {
 public:
  // wanted: the places whose tensors are held. says: called as each layer is reached; may be empty.
  // threads: that copy; 0: one a core. few: tensors of fewer elements are held in host memory. The
  // model is borrowed, and runs no other pass until this one has ended.
  ModelPass(ReferenceModel& model, const PassInfo& info, Only::Wanted wanted,
            std::function<void(int layer)> says, int threads, int64_t few = 0);
  ModelPass(const ModelPass&) = delete;
  ~ModelPass() override;

  // Computes on through that layer, from the beginning, as ReferenceModel::advance. Throws Error
  // when it cannot.
  void advance(int through);
  // Begins to, by a thread that does nothing else until then and is borrowed. What comes is held
  // from the next advance() on, which waits for it; nobody is told of its layers.
  void begin_advance(int through, Background& by);
  // The tensors that are held, in the order in which they were shown. Without data: where the model
  // computed them.
  const Pass& pass() const { return pass_; }
  // The tensor of a place with those rows in host memory, and maybe more; without data: one of them
  // is not held.
  RecordedTensor with_rows(const Place& place, std::span<const Row> rows) const;
  // The same where the model computed them; null: they are here, not held, or do not follow each
  // other.
  HeldRows held_rows(const Place& place, std::span<const Row> rows) const;
  void drop(const Place& place);

 private:
  // A model shows what it computed on a device there, where it is left.
  bool on_device() const override { return true; }
  bool wants(const Point& point, int layer) const override { return wanted_(point, layer); }
  void begin(const PassInfo&) override {}
  void record(const Record& record) override;
  void end() override {}
  void check_probe() const;
  void compute(int through);
  void take_what_came();

  // The tensors that it showed and that were not dropped.
  struct Held {
    std::vector<RecordedTensor> tensors;
    // By order of the point and layer.
    std::map<std::pair<int, int>, std::shared_ptr<const void>> there;
  };

  ReferenceModel& model_;
  Only::Wanted wanted_;
  SharedCopy copies_;
  int64_t few_;  // as given
  Pass pass_;
  std::map<std::pair<int, int>, std::shared_ptr<const void>> there_;  // as in Held
  Held coming_;  // since the last advance() ended
  bool is_begun_ = false;
  Background* by_ = nullptr;  // null: nobody computes ahead
  LayerWatch watched_;
  Probe probe_;
};

}  // namespace lockstep
