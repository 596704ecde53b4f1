// A pass's part in an op that was found wrong.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "src/causes/causes.h"
#include "src/judge/budget.h"
#include "src/judge/cache_read.h"
#include "src/judge/pass_view.h"

namespace lockstep {

// Everything is borrowed from the pass; `op` points into it.
struct Causes::Evidence {
  // Null where the op's inputs are not there, or it has no arithmetic.
  static std::unique_ptr<Evidence> of(const Pass& pass, const Place& place,
                                      const std::set<int32_t>& requests, const Manifest& manifest,
                                      const Judge& judge, Oracle& oracle);

  // Holds a hypothesis's result, of all rows, against the nodes found wrong, and against those
  // found right whose kind is among `kinds`: a bug of decode leaves prompts alone.
  Fit fit(const Numbers& hypothesis, const std::set<bool>& kinds) const;
  // Whether nodes found wrong decode: one row of their request in the pass.
  std::set<bool> wrong_kinds() const;

  OpInPass op;

 private:
  struct Node {
    bool is_wrong = false;
    std::vector<size_t> rows;
    std::vector<double> got, want, limit;
  };

  TensorView pick(const RecordedTensor* tensor);
  bool pick_inputs(const Pass& pass, const Graph& graph);
  bool pick_caches(const Pass& pass, const Place& cache, const Judge& judge);
  bool judge_rows(const std::vector<size_t>& rows, Oracle& oracle, std::vector<double>& want);
  bool judge(Oracle& oracle);
  void put_nodes(const std::set<int32_t>& requests);

  std::vector<Row> rows_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> lengths_;
  std::deque<SelectedRows> picked_;
  std::deque<CacheRead> caches_;
  size_t row_size_ = 0;
  std::vector<double> limit_;  // B of each element
  std::vector<Node> nodes_;
};

}  // namespace lockstep
