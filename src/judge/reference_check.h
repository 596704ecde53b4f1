#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "src/judge/model_pass.h"
#include "src/judge/oracle.h"

namespace lockstep {

// The reference held to itself: what its fp64 model made at a place, y_O, must be what its oracle
// makes of what that model fed to it, O(x_O). Of each place one row is asked, all places in the
// first pass and a sixteenth of them in each later one, in turn, so that it costs little.
class ReferenceCheck {
 public:
  ReferenceCheck(Oracle& oracle, const Graph& graph, DType dtype);

  // The places that are due in the next pass, and whether the model must show its K/V cache there.
  void begin_pass();
  bool needs_cache(int layer) const { return cached_layers_.contains(layer); }
  // The pass of the fp64 model, as it comes: the places that are due, come before that node of the
  // graph, and were not checked yet. What it does not show is not asked.
  void check(const ModelPass& exact, int before);

  int64_t checked() const { return checked_; }
  // The first place where they differ, in a sentence's words; empty: nowhere.
  const std::string& suspicion() const { return suspicion_; }

 private:
  void check_place(const Place& place, const ModelPass& model);

  Oracle& oracle_;
  Graph graph_;
  DType dtype_;
  std::vector<Place> places_;  // that can be asked
  std::vector<size_t> due_;
  size_t next_ = 0;  // of them
  std::set<int> cached_layers_;
  int64_t passes_ = 0, checked_ = 0;
  std::string suspicion_;
};

}  // namespace lockstep
