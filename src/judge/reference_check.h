#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/judge/background.h"
#include "src/judge/model_pass.h"
#include "src/judge/oracle.h"
#include "src/judge/pass_view.h"

namespace lockstep {

// The reference held to itself: what its fp64 model made at a place, y_O, must be what its oracle
// makes of what that model fed to it, O(x_O). Of each place one row is asked, all places in the
// first pass and a sixteenth of them in each later one, in turn, so that it costs little.
class ReferenceCheck {
 public:
  // The oracle is borrowed; it is asked by a thread of its own where several may.
  ReferenceCheck(Oracle& oracle, const Graph& graph, DType dtype);

  // The places that are due in the next pass, and whether the model must show its K/V cache there.
  void begin_pass();
  bool needs_cache(int layer) const { return cached_layers_.contains(layer); }
  // The pass of the fp64 model, as it comes: the places that are due, come before that node of the
  // graph, and were not checked yet. What it does not show is not asked.
  void check(const ModelPass& exact, int before);

  // Returns when the oracle is asked no more. Throws Error where it could not be asked.
  void wait();
  // From then on: how many places were checked, and the first one where they differ, in a
  // sentence's words; empty: nowhere.
  int64_t checked() const { return checked_; }
  const std::string& suspicion() const { return suspicion_; }

 private:
  // A row of a place as the model made it, and the oracle's question with all that it reads.
  struct Question {
    Row row;
    int32_t token = 0;
    int64_t length = 0;
    RecordedTensor made;
    std::vector<RecordedTensor> brought;
    std::vector<SelectedRows> picked;
    Tensor k, v;
    OracleCall call;
  };
  // Null: what it takes is not shown.
  std::unique_ptr<Question> question_of(const Place& place, const ModelPass& model) const;
  void ask(const Question& question);

  Oracle& oracle_;
  Graph graph_;
  DType dtype_;
  std::vector<Place> places_;  // that can be asked
  std::vector<size_t> due_;
  size_t next_ = 0;  // of them
  std::set<int> cached_layers_;
  int64_t passes_ = 0, checked_ = 0;
  std::string suspicion_;
  std::unique_ptr<Background> thread_;  // ends before all above; null: this one asks
};

}  // namespace lockstep
