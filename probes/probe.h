// The way out of a model: what it makes is shown at named points (points.h) to whoever wants it.
//
//     model -> Probe(point, layer, tensor) -> Sink::wants? -> Sink::record(rows, tensor)
//                 |  on a device, to a sink that takes digests
//                 +-> DigestRing -> another thread -> DigestSink::take(pass)
//
// A sink is a chain of small ones: Tee shows to two, Only to one some places, LayerWatch says where
// the pass is, Recorder copies. Tensors belong to the model and are valid during the call alone;
// whoever keeps one copies it.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/memory.h"
#include "probes/record.h"

namespace lockstep {

class DigestRing;
struct DigestedPass;
struct Pass;

// Takes passes of which digests were made on the device that computed them, in their order, from
// another thread than the engine's.
class DigestSink {
 public:
  virtual ~DigestSink() = default;
  // Whether the numbers of a wanted tensor are wanted too.
  virtual bool keeps(const Point& point, int layer) const = 0;
  // The memory that is left of the pass is used again for a later one, since small passes come
  // faster than memory is made.
  virtual void take(Pass&& pass) = 0;
};

// When a tensor is there that is made by a launch which goes on meanwhile.
using ReadyOf = std::function<Ready(const Point& point, int layer)>;

// Receives what a model shows, in the order in which it is made. Calls come pass by pass, begin(),
// records, end(), on the thread that runs the model.
class Sink {
 public:
  virtual ~Sink() = default;
  // Whether it takes tensors where they lie, padding included, and does no more than queue work on
  // them: what a model shows while a graph is made of it.
  virtual bool on_device() const { return false; }
  // Whether it may write into what it is shown: then the model computes one op at a time.
  virtual bool writes() const { return false; }
  // Whether a tensor of that place is wanted: one that is not costs nothing.
  virtual bool wants(const Point& point, int layer) const = 0;
  // Where it wants no more of passes on a device than their digests, and some tensors: who takes
  // them. Null: it wants to be shown the tensors.
  virtual DigestSink* digests() { return nullptr; }
  // From here to the end of the pass tensors are shown while a launch on the device makes them, if
  // the sink returns that it waits for each as it is told; and none of them is looked at before the
  // launch.
  virtual bool waits(const ReadyOf&) { return false; }
  virtual void begin(const PassInfo& pass) = 0;
  virtual void record(const Record& record) = 0;
  virtual void end() = 0;  // of the pass
};

// A model calls this at every point, with a tensor on any device: the sink gets it in host memory,
// without the padding after its rows, and what it writes there, if it says that it does, the model
// goes on with. Without a sink, a call costs one branch. A sink that throws is switched off for
// good and the model goes on: `failure` then says why. It is used by the model's thread, and the
// sink must outlive it.
class Probe {
 public:
  Probe() = default;
  explicit Probe(Sink* sink) : sink_(sink) {}  // borrowed

  bool on() const { return sink_ != nullptr; }
  bool on_device() const { return sink_ != nullptr && sink_->on_device(); }
  bool writes() const { return sink_ != nullptr && sink_->writes(); }
  bool wants(const Point& point, int layer) const {
    return sink_ != nullptr && sink_->wants(point, layer);
  }

  bool waits(const ReadyOf& ready) { return sink_ != nullptr && sink_->waits(ready); }

  void begin(const PassInfo& pass);
  void end();

  // The ring that digests go to, when the sink takes them. Null: tensors are to be shown.
  DigestRing* digests();
  // Takes the digests of one pass, once it is queued.
  void push(DigestedPass pass);
  // Returns when the sink has had all that was shown so far.
  void flush();

  // A tensor with one row per token of the pass.
  void operator()(const Point& point, int layer, const TensorView& tensor) {
    if (sink_) emit(point, layer, rows_, tensor);
  }
  // The same of a part of it.
  void shard(const Point& point, int layer, const TensorView& tensor, const Shard& shard) {
    if (sink_) emit(point, layer, rows_, tensor, shard);
  }
  // A tensor with the pass's logit rows.
  void logits(const Point& point, const TensorView& tensor) {
    if (sink_) emit(point, -1, logit_rows_, tensor);
  }
  // A tensor with other rows.
  void operator()(const Point& point, int layer, std::span<const Row> rows,
                  const TensorView& tensor) {
    if (sink_) emit(point, layer, rows, tensor);
  }

  const std::string& failure() const { return failure_; }  // empty: none

 private:
  void emit(const Point& point, int layer, std::span<const Row> rows, const TensorView& tensor,
            const std::optional<Shard>& shard = {});
  template <typename Call>
  void guarded(Call call) {
    if (!sink_) return;
    try {
      call();
    } catch (const std::exception& error) {
      sink_ = nullptr;
      failure_ = error.what();
    }
  }

  Sink* sink_ = nullptr;
  std::vector<Row> rows_;
  std::vector<Row> logit_rows_;
  Tensor host_;  // where a device's tensors are copied to: kept, for it takes longer to make
  std::string failure_;
  std::shared_ptr<DigestRing> ring_;  // made when it is asked for; gone before the sink is
};

}  // namespace lockstep
