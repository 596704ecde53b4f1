// A pass as one rank shows it, on its way to rank 0.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/base/memory.h"
#include "probes/probe.h"
#include "src/ranks/rank_plan.h"

namespace lockstep {

// A tensor, as it is or as a part of one.
struct RankTensor {
  const Point* point = nullptr;
  int layer = -1;
  std::vector<Row> rows;
  std::optional<Shard> shard;
  Tensor data;
};

// A pass of a rank: what it was told to compute, and its tensors in the order of the computation.
struct RankPass {
  PassInfo info;  // in other ranks than 0: pass, rows and pages alone
  std::vector<RankTensor> tensors;
};

// The pass as bytes for another process of this very program, and back. Throws Error when bytes are
// missing.
std::vector<std::byte> bytes_of(const RankPass& pass);
RankPass rank_pass_from(const std::vector<std::byte>& bytes);

// Copies what a rank shows, with the part that it is of the whole, and hands each finished pass on.
class RankRecorder final : public Sink {
 public:
  using Wants = std::function<bool(const Point&, int layer)>;
  RankRecorder(const RankPlan& plan, Wants wants, std::function<void(RankPass)> finished)
      : plan_(plan), wants_(std::move(wants)), finished_(std::move(finished)) {}

  bool wants(const Point& point, int layer) const override { return wants_(point, layer); }
  void begin(const PassInfo& pass) override;
  void record(const Record& record) override;
  void end() override { finished_(std::exchange(pass_, {})); }

 private:
  RankPlan plan_;
  Wants wants_;
  std::function<void(RankPass)> finished_;
  RankPass pass_;
};

}  // namespace lockstep
