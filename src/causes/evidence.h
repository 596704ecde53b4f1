// A pass's part in an op that was found wrong.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/causes/causes.h"
#include "src/judge/budget.h"
#include "src/judge/cache_read.h"
#include "src/judge/pass_view.h"

namespace lockstep {

// Everything is borrowed from the pass; `op` points into it.
struct Causes::Evidence {
  // Null where the op's inputs are not there, it has no arithmetic, or it cannot be of the
  // contract.
  static std::unique_ptr<Evidence> of(const Pass& pass, const Place& place,
                                      const std::set<int32_t>& requests, RoundingContract contract,
                                      const Manifest& manifest, const Judge& judge, Oracle& oracle);

  // Whether half of what is wrong in the rows op.few lies where the hypothesis has it. `hypothesis`
  // is of these rows alone or of all.
  bool may_explain(const Numbers& hypothesis) const;
  // The exact results where the op rounds once, at its store; none where it is declared to, or the
  // oracle has none.
  Numbers right_once(Oracle& oracle) const;
  // Parts in which a cause may hold alone, the least narrow first: its wrong rows, its wrong
  // columns, both. None where all of it is wrong, or too little of it to tell.
  std::vector<WrongPart> wrong_parts() const;
  // The hypothesis there, and what is right elsewhere.
  Numbers within(const WrongPart& part, const Numbers& hypothesis) const;
  // Holds a hypothesis's result, of all rows, against the nodes found wrong, and against those
  // found right whose kind is among `kinds`: a bug of decode leaves prompts alone.
  Fit fit(const Numbers& hypothesis, const std::set<bool>& kinds) const;
  // Whether nodes found wrong decode: one row of their request in the pass.
  std::set<bool> wrong_kinds() const;
  // Counts what there is to explain, as far as it does not depend on the hypothesis.
  Fit unexplained() const;

  OpInPass op;

 private:
  struct Node {
    bool is_wrong = false;
    int64_t over = 0;  // elements over their budgets
    std::vector<size_t> rows;
    std::vector<double> got, want, limit;
  };

  TensorView pick(const RecordedTensor* tensor);
  bool pick_inputs(const Pass& pass, const Graph& graph);
  bool pick_caches(const Pass& pass, const Place& cache, const Judge& judge);
  // Puts what the oracle has of some rows into what is of all. False: it has something else.
  bool judge_rows(RoundingContract contract, const std::vector<size_t>& rows, Oracle& oracle,
                  std::vector<double>& want, std::vector<double>& limit) const;
  bool judge(RoundingContract contract, Oracle& oracle, std::vector<double>& want,
             std::vector<double>& limit) const;
  std::vector<WrongPart> parts_of_columns() const;
  std::vector<WrongPart> parts_of_shares() const;
  void put_nodes(const std::set<int32_t>& requests);
  void put_few(bool of_other);

  std::vector<Row> rows_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> lengths_;
  std::deque<SelectedRows> picked_;
  std::deque<CacheRead> caches_;
  size_t row_size_ = 0;
  std::vector<double> limit_;  // B of each element
  std::vector<Node> nodes_;
  std::vector<bool> wrong_rows_, wrong_columns_;  // that have an element over its budget
};

}  // namespace lockstep
