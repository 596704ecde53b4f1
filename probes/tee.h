#pragma once

#include "probes/probe.h"

namespace lockstep {

// Shows everything to two sinks, the first one first. Both are borrowed.
class Tee final : public Sink {
 public:
  Tee(Sink& first, Sink& second) : first_(first), second_(second) {}

  bool wants(const Point& point, int layer) const override {
    return first_.wants(point, layer) || second_.wants(point, layer);
  }
  bool writes() const override { return first_.writes() || second_.writes(); }
  void begin(const PassInfo& pass) override {
    first_.begin(pass);
    second_.begin(pass);
  }
  void record(const Record& record) override {
    for (Sink* sink : {&first_, &second_})
      if (sink->wants(*record.point, record.layer)) sink->record(record);
  }
  void end() override {
    first_.end();
    second_.end();
  }

 private:
  Sink& first_;
  Sink& second_;
};

}  // namespace lockstep
