#pragma once

#include <functional>
#include <utility>

#include "probes/probe.h"

namespace lockstep {

// Shows a sink, which is borrowed, some places alone.
class Only final : public Sink {
 public:
  using Wanted = std::function<bool(const Point& point, int layer)>;
  Only(Sink& sink, Wanted wanted) : sink_(sink), wanted_(std::move(wanted)) {}

  bool wants(const Point& point, int layer) const override {
    return wanted_(point, layer) && sink_.wants(point, layer);
  }
  bool writes() const override { return sink_.writes(); }
  void begin(const PassInfo& pass) override { sink_.begin(pass); }
  void record(const Record& record) override { sink_.record(record); }
  void end() override { sink_.end(); }

 private:
  Sink& sink_;
  Wanted wanted_;
};

}  // namespace lockstep
