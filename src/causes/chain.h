// Ops one after the other, of which the last was recorded and the others were not.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "src/judge/cache_read.h"
#include "src/judge/hypotheses.h"
#include "src/judge/judge.h"
#include "src/judge/pass_view.h"

namespace lockstep {

// The pass, the judge and the oracle are borrowed and must outlive it.
class OpChain {
 public:
  // The results of its ops, of hidden ones in fp64.
  using Values = std::vector<RecordedTensor>;
  // Whether hidden results are rounded to what an engine stores.
  enum Stores : uint8_t { rounded, unrounded };
  struct Op {
    Place place;
    RoundingContract contract = RoundingContract::fused;
    std::vector<Row> rows;
    std::vector<PassRow> pass_rows;
    std::vector<int32_t> tokens;
    std::vector<int64_t> lengths;
    std::vector<size_t> reads;  // ops of the chain, caches looked through
  };
  // An op with what it reads, for the oracle and for hypotheses.
  struct Question {
    OpInPass op;
    std::deque<SelectedRows> picked;
    std::deque<CacheRead> caches;
  };
  // The oracle's answer of all rows, and, where it was asked for them, its budgets B, and the
  // deviations of right fp32 kernels, whatever they store.
  struct Answer {
    bool wants_limit = false;
    std::vector<double> want, limit, deviation;
    Shape shape;
  };

  // recorded: the dtype of what the last op stored.
  OpChain(const Pass& pass, const Manifest& manifest, const Judge& judge, Oracle& oracle,
          DType recorded);

  // Adds an op behind those that it reads. False: the pass has not all of its rows.
  bool add(const Place& place, std::span<const Row> rows);
  // The same chain of those rows of the last op, and of others what these are made of.
  OpChain with_few(std::span<const Row> last) const;
  const std::vector<Op>& ops() const { return ops_; }
  // Whether the one op is made of the other, in however many steps.
  bool reads(size_t op, size_t before) const;

  // A tensor of the chain or of the pass, in those rows; empty: it has not all of them.
  TensorView pick(Question& question, const Place& place, const Values& values,
                  std::span<const Row> rows) const;
  // False: something that the op reads is not there.
  bool ask(size_t i, const Values& values, Question& question) const;
  Answer answer_of(size_t i, const Question& question);
  // Puts what an op made, a row for each of its rows, among the values.
  void put(size_t i, std::span<const double> numbers, const Shape& row_shape, Stores stores,
           Values& values) const;
  // Computes those from `first` on that are changed or read what is, but for those that are given.
  // `last`: the recorded op's answer. False: it could not be computed.
  bool run(size_t first, std::vector<bool> changed, const std::vector<bool>& given, Values& values,
           Stores stores, Answer* last);

 private:
  std::optional<size_t> op_of(const Place& place) const;
  std::vector<Place> inputs_of(const Op& op) const;
  bool ask_caches(const Op& op, const Place& cache, const Values& values, Question& question) const;
  void add_rows(size_t i, const OracleCall& call, Answer& answer);

  const Pass& pass_;
  Graph graph_;
  const Judge& judge_;
  Oracle& oracle_;
  DType dtype_, recorded_;
  int64_t page_size_;
  std::vector<Op> ops_;
};

}  // namespace lockstep
