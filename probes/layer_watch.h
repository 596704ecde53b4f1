#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "probes/probe.h"

namespace lockstep {

// Shows a sink, which is borrowed, everything, and says before it which layer is being computed:
// once for each layer of a pass that the sink wants something of.
class LayerWatch final : public Sink {
 public:
  // pass: its number; rows: its tokens.
  using Says = std::function<void(int32_t pass, int64_t rows, int layer)>;
  LayerWatch(Sink& sink, Says says) : sink_(sink), says_(std::move(says)) {}

  bool wants(const Point& point, int layer) const override { return sink_.wants(point, layer); }
  bool on_device() const override { return sink_.on_device(); }
  bool writes() const override { return sink_.writes(); }
  void begin(const PassInfo& pass) override {
    last_ = -1;
    pass_ = pass.pass;
    rows_ = std::ssize(pass.rows);
    sink_.begin(pass);
  }
  void record(const Record& record) override {
    if (record.layer > last_ && says_) says_(pass_, rows_, last_ = record.layer);
    sink_.record(record);
  }
  void end() override { sink_.end(); }

 private:
  Sink& sink_;
  Says says_;
  int last_ = -1;
  int32_t pass_ = 0;
  int64_t rows_ = 0;
};

}  // namespace lockstep
