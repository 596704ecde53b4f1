// The nodes of one place of one pass, from records to outcomes.
//
//     rejected()       not there, of another shape, kept as digests, without an input: no numbers
//     judge_cache()    attn.kv, by the hashes of what was written (cache_read.h)
//     judge_indices()  argmax and top_k, by the values that they choose among (index_choice.h)
//     join()           all others: nodes become members of a Group; of ops that attend one request
//                      each
//       judge_under()    under each contract that is tried
//         measure_under()  blocks of its rows: Oracle::evaluate -> budget_of -> Meter::measure
//         outcome_of()     the statistics of a member against their limits
//
// Nodes of several requests are one Group because the oracle reads the op's weights once a call.
// Rows are measured by several threads and added in their order, so the result does not depend on
// how many threads there are.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "src/judge/background.h"
#include "src/judge/budget.h"
#include "src/judge/cache_read.h"
#include "src/judge/contracts.h"
#include "src/judge/halving_oracle.h"
#include "src/judge/hidden.h"
#include "src/judge/index_choice.h"
#include "src/judge/judged_rows.h"
#include "src/judge/kv_history.h"
#include "src/judge/ledger.h"
#include "src/judge/limits.h"
#include "src/judge/oracle.h"
#include "src/judge/pass_view.h"
#include "src/judge/place_pools.h"
#include "src/judge/shares.h"
#include "src/stats/row_scales.h"
#include "src/stats/statistics.h"

namespace lockstep {

class ModelPass;  // model_pass.h

// The data that judging one pass stands on.
struct JudgedPass {
  const PassView& seen;
  const KvHistory& history;
  // The same pass of the model in fp64 and of the model in the run's dtype; null: not known.
  ModelPass* exact = nullptr;
  ModelPass* rounded = nullptr;
};

// The outcomes of one node under each contract that is tried.
using NodeOutcomes = std::vector<NodeOutcome>;

// How the nodes of a place that are findings fare under other contracts than their own.
struct OtherContracts {
  struct Other {
    RoundingContract contract = RoundingContract::fused;
    int64_t fits = 0;  // of the findings
  };

  int64_t tried = 0;          // findings that were judged again, kMostTried at most
  int64_t odd = 0;            // of them, those of one element alone among many
  std::vector<Other> others;  // the strictest first

  // The first that all of them fit; nothing: none, or none was tried.
  std::optional<RoundingContract> that_fits() const;
  // Whether it fits as anything would that is wider than the op's own.
  bool says_nothing() const { return odd == tried; }
};

struct OpJudgeOptions {
  DType dtype = DType::bf16;
  int64_t page_size = 0;  // 0: not known
  RowsToJudge rows;
  double limit_scale = 1;
  int threads = 0;           // that measure; 0: one a core
  bool partial = false;      // the trace was not meant to hold every tensor
  bool full = false;         // it was meant to hold the numbers of those that it has
  bool may_saturate = true;  // as in JudgeOptions
  Ties ties = Ties::any;     // what argmax and top_k promise of equal values
  // Whether any pass of the trace has a tensor of the place; empty: of every one.
  std::function<bool(const Place&)> recorded;
  std::map<std::string, RoundingContract> contracts;  // declared, by point name
  Limits limits;
  // Is told, of each row that is judged under the first of its contracts, the exact result and
  // the most that its elements may be off; by any of the threads that measure. Empty: nobody is.
  std::function<void(const Place&, const Row&, std::span<const double> want,
                     std::span<const double> limit)>
      show;
};

// Judges the nodes of one place of a pass, each on its own recorded inputs.
class OpJudge {
 public:
  using Options = OpJudgeOptions;

  // graph: of what is judged. The graph is copied, the oracle borrowed: it is asked by this thread
  // and some of its own, one at a time unless it may be asked by several, a block of rows at a
  // time.
  OpJudge(Oracle& oracle, const Graph& graph, Options options);

  void begin_pass(const PassView& pass);
  // Takes over what the same view shows by now of the graph's places from that number on.
  void see(const PassView& pass, size_t from);
  // Each place of a pass in graph order, before it is judged.
  void reach(const Place& place);
  // Whether any pass so far has a tensor of the point, of whatever layer.
  bool has_seen(const Point& point) const { return seen_.contains(point.order()); }
  DType dtype_at(const Place& place) const;
  // The places that the trace does not have, and what stands in for them.
  const HiddenTensors& hidden() const { return hidden_; }
  // The budget at a point whose op reads what is hidden, where it is widest; none: by nothing.
  struct Width {
    double times = 1;  // that of its own op
    // The mean of a block's elements, by the root mean square of its results; of an op that chooses
    // indices, of the values of two that it chooses among.
    double of_row = 0;
  };
  const std::map<int, Width>& widened_by() const { return widened_by_; }
  // The contracts that nodes of the place are judged under.
  std::vector<RoundingContract> candidates(const Place& place) const;
  // All contracts that the op of the place can have in this run.
  std::vector<RoundingContract> possible(const Place& place) const {
    return contracts_of(place.point->op, traits_of(place));
  }
  // The outcomes of each of seen.nodes_of(place), in that order. `inputs` are inputs_of(place).
  std::vector<NodeOutcomes> judge(const Place& place, const std::vector<Place>& inputs,
                                  const JudgedPass& pass);
  // Whether nodes of an attention are merged right of the shares that were recorded. Wrong ones
  // that are get the outcome of their merge: they are wrong by what they were merged of. So do
  // those of which some elements are: their finding is of what the merge itself got wrong. It says
  // that it did. `shares` are its attn.partial and attn.lse, and `outcomes` those of judge(), of
  // that place. Where rows of shares could not be judged, a node that follows from them stays
  // wrong, of a region that they are in: nobody else says that they are.
  // In 16 bits a contract that allows roundings on the way allows them to the shares, not to their
  // merge: a node that fits it, of shares that may be right, is wrong where its merge is. So
  // may be shares that fit such a contract alone: the finding is of a region that they are in.
  void judge_merge(const Place& place, const std::vector<Place>& shares, const JudgedPass& pass,
                   std::vector<NodeOutcomes>& outcomes);
  // Before a place is reached: which ones of the pass come next, it and those after it, in their
  // order, so that the oracle is asked about them while this one is judged. At most so many are
  // expected at a time beside it. `pass` must live until none is.
  size_t most_expected() const;
  void expect(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass);
  void expect_none();
  // The sums over all rows of the place that were judged by numbers so far, whatever their pass and
  // request. Null when there are none, or some are wrong by the shares that they were merged of.
  const PlacePool* pooled(const Place& place, RoundingContract contract) const;
  // The same of the scales of rows whose norm reads a sum that is not known bit for bit; else none.
  ScaleSums scales(const Place& place, RoundingContract contract) const;
  // The statistics of all those rows, with their limits.
  std::vector<Statistic> pooled_statistics(const Place& place, RoundingContract contract) const;
  // After the last pass: of each point that was tried under several contracts, which one counts.
  void decide_contracts(const std::vector<Place>& places);
  Contracts& contracts() { return contracts_; }
  const Contracts& contracts() const { return contracts_; }
  OtherContracts other_contracts(const Place& place) const;
  const JudgedRows& judged_rows() const { return judged_rows_; }
  // The share of their limits that nodes reached, by op, of the points that round once.
  std::map<OpKind, Reached> reached() const;

 private:
  struct Group;     // nodes that the oracle is asked for together
  struct Block;     // some of its rows, and all that they are measured by
  struct Measured;  // what one of them came to beside its numbers
  struct Question;  // some of its rows, and what the oracle is asked about them
  struct Asked;     // the same, and its answer
  struct Expected;  // a place that comes later, and what it was asked before it came

  bool rejected(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                const NodeRows& node, DType dtype, NodeOutcome& outcome) const;
  // Whether the op reads that place, recorded or made; where its angles are hidden it makes its
  // own.
  bool reads(const Place& input) const;
  // Why an input of the op cannot be read; empty: it can.
  std::string trouble_with(const Place& input, const JudgedPass& pass, const NodeRows& node) const;
  // The tensor of an input, recorded or made.
  const RecordedTensor* tensor_of(const Place& input, const JudgedPass& pass,
                                  int32_t request) const;
  Numbers carried(const OracleCall& call, const std::vector<Place>& read, const Group& group,
                  const Exact& exact);
  Meter meter_of(const Place& place, const Group& group, const NodeRows& node, PlacePool* pool,
                 ProfiledRows profiled) const;
  // Adds a node to the group; false, with an outcome, when what it reads is not there.
  bool join(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
            const NodeRows& node, Group& group, NodeOutcomes& outcomes);
  void judge_numbers(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                     Group& group);
  // Adds a node's rows to the group, which reads nothing yet.
  static void add_rows(const JudgedPass& pass, const NodeRows& node, Group& group,
                       NodeOutcomes* outcomes);
  // The cache that the op attends to, into the group. Returns why it cannot be read; "": it can.
  std::string find_cache(const Place& kv, const JudgedPass& pass, const NodeRows& node,
                         Group& group) const;
  // Adds those nodes of `own`, which are held to the exact angles, to `group` that do not fit them.
  void judge_by_exact_angles(const Place& place, const std::vector<Place>& inputs,
                             const JudgedPass& pass, Group& own, Group& group);
  void judge_under_each(const std::vector<RoundingContract>& contracts, const Place& place,
                        const std::vector<Place>& inputs, const JudgedPass& pass, Group& group);
  void judge_under(RoundingContract contract, const Place& place, const std::vector<Place>& inputs,
                   const JudgedPass& pass, Group& group);
  // Measures the group's rows under a contract. False when the oracle's shape is another: the nodes
  // are structural then.
  bool measure_under(RoundingContract contract, const Place& place,
                     const std::vector<Place>& inputs, const JudgedPass& pass, Group& group);
  Question question_of(RoundingContract contract, const Place& place,
                       const std::vector<Place>& inputs, const JudgedPass& pass, const Group& group,
                       size_t first, size_t count) const;
  // Whether the oracle may measure rows of the group where it computes.
  bool measures_there(const Place& place, const Group& group) const;
  size_t rows_at_once(const Group& group) const;  // of a block
  Background& for_next_block();
  void ask_before();
  void ask_before(Expected& expected);
  bool prepare_to_measure(Expected& expected) const;
  void measure_beforehand(Expected& expected, const Question& question, const Exact& exact) const;
  bool take_measured(const Question& question, const Exact& exact, Group& group);
  std::unique_ptr<Asked> or_asked_before(std::unique_ptr<Asked> asked);
  bool judge_block(const Question& question, size_t first, const Exact& exact,
                   const JudgedPass& pass, Group& group);
  // Whether the op reads a sum before it was rounded, of which the trace has what was stored alone.
  bool reads_unrounded(const OracleCall& call, const std::vector<Place>& read) const;
  void add_scales(const Question& question, const Block& block, Group& group);
  // The places whose tensors the oracle is given.
  std::vector<Place> read_by(RoundingContract contract, const std::vector<Place>& inputs,
                             const Group& group) const;
  // Whether the tensor is known bit for bit at the node's rows.
  bool knows(const Place& input, const JudgedPass& pass, const NodeRows& node) const;
  // Settles whether what a kernel of that contract reads is known but for an error.
  void blur(RoundingContract contract, const std::vector<Place>& inputs, Group& group) const;
  // The threads that share a block of that many elements; null when it is not worth it.
  ThreadPool* threads_for(int64_t elements);
  // Keeps by how much the block's budgets are widened. False: so much that they allow anything.
  bool narrow_enough(const Block& block);
  Budget budget_of_row(const Block& block, size_t row) const;
  Measured measure_row(const Block& block, const Group& group, size_t row, Meter::Row& into) const;
  // A block that no other threads share, of inputs that are all known.
  Block block_of(const Question& question, size_t first, const Exact& exact,
                 const TensorView& exact_model, const TensorView& rounded_model) const;
  // measured: room that is used again. It has all rows afterwards where the block has at most
  // kAtATime elements or the oracle measured it, else the last ones.
  void measure_block(const Block& block, Group& group, std::vector<Meter::Row>& measured) const;
  void begin_measures(const Place& place, Group& group, PlacePool* pool,
                      ProfiledRows profiled) const;
  NodeOutcome outcome_of_member(RoundingContract contract, const Place& place, const Group& group,
                                size_t member);
  static bool is_of_one_element(const Group& group, size_t member);  // of many: its finding
  // Judges the findings of a declared contract again, under the others.
  void try_others(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                  Group& group);
  // Measures nodes again that are findings though no element is over its budget, for where their
  // errors lie: the first ones of a place.
  void show_diffuse(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                    Group& group);
  NodeOutcome judge_cache(const Place& place, const std::vector<Place>& inputs,
                          const JudgedPass& pass, const NodeRows& node);
  NodeOutcome judge_indices(const Place& place, const std::vector<Place>& inputs,
                            const JudgedPass& pass, const NodeRows& node);
  ContractTraits traits_of(const Place& place) const;
  std::optional<NodeOutcome> outcome_of_merge(const Place& place, const std::vector<Place>& shares,
                                              const JudgedPass& pass, const NodeRows& node);

  HalvingOracle oracle_;
  Graph graph_;
  std::unique_ptr<ThreadPool> threads_;     // null before there was something worth sharing
  Backgrounds for_places_, for_blocks_{1};  // that ask beforehand
  Options options_;
  using Key = std::pair<int, int>;  // order of the point, layer
  std::set<Key> misshapen_;         // in this pass
  std::set<int32_t> wrong_angles_;  // requests whose rotary tables were found wrong in this pass
  ShareDoubts doubts_;              // of this pass
  std::set<int> seen_;              // order of the points that have tensors
  std::map<Key, DType> stored_;     // where that may be another than the run's dtype makes it
  Contracts contracts_;
  HiddenTensors hidden_;
  std::map<int, Width> widened_by_;    // by order of the point
  std::map<OpKind, Reached> reached_;  // by single nodes
  PlacePools pools_;
  std::map<std::pair<Key, RoundingContract>, RowScales> scales_;
  std::set<Key>
      wrong_by_shares_;  // attentions whose pools have rows that are wrong by their shares
  std::map<Key, OtherContracts> others_;
  JudgedRows judged_rows_;
  std::vector<Meter::Row> rows_;  // of a block, for as long as it is measured
  std::map<Key, int64_t> shown_;  // nodes that were measured again for where their errors lie
  // The places after the one that is judged, and this one, which are asked about beforehand. They
  // end before all that is read then.
  std::deque<std::shared_ptr<Expected>> expected_;
  std::shared_ptr<Expected> asked_before_;
};

// Makes a verdict of a node's measure. row_shape: the axes after the rows. The place, pass and
// request of the outcome are for the caller to fill in.
NodeOutcome outcome_of(Measure measure, const Shape& row_shape, double limit_scale);

}  // namespace lockstep
