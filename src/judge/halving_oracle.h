#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "src/judge/oracle.h"

namespace lockstep {

// The same question about `count` of its rows, from `first` on. It borrows what the call does.
OracleCall rows_of_call(const OracleCall& call, size_t first, size_t count);

// An oracle that is asked about fewer rows at a time where it has no memory for all: NoMemory
// halves the rows that are asked about at a point, down to one, for as long as this lives. The
// answer is the one about all rows, joined, so that what is made of it does not depend on how much
// memory there was. NoMemory goes on only of a single row. The oracle is borrowed, and asked by as
// many threads as ask here.
class HalvingOracle final : public Oracle {
 public:
  explicit HalvingOracle(Oracle& oracle) : oracle_(oracle) {}

  Graph graph() const override { return oracle_.graph(); }
  bool has_bias(const Place& place) const override { return oracle_.has_bias(place); }
  int64_t chosen_experts() const override { return oracle_.chosen_experts(); }
  Exact evaluate(const OracleCall& call) override;
  bool on_device() const override { return oracle_.on_device(); }
  bool asked_by_several() const override { return oracle_.asked_by_several(); }
  int64_t least_measured() const override { return oracle_.least_measured(); }
  int64_t block_bytes() const override { return oracle_.block_bytes(); }

  // The most rows that it is asked about at that point from here on. Any thread may ask, also while
  // another one evaluates.
  size_t most_rows(const Point& point) const;

 private:
  void expect_at_most(size_t rows, const Point& point);

  Oracle& oracle_;
  mutable std::mutex mutex_;
  std::map<int, size_t> most_rows_;  // by order of the point; none: no limit was met
};

}  // namespace lockstep
