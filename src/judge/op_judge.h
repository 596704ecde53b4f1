#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kernels/thread_pool.h"
#include "src/judge/budget.h"
#include "src/judge/kv_history.h"
#include "src/judge/ledger.h"
#include "src/judge/limits.h"
#include "src/judge/oracle.h"
#include "src/judge/schemas.h"
#include "src/judge/seen.h"
#include "src/judge/statistics.h"

namespace lockstep {

// What judging one pass stands on.
struct JudgedPass {
  const SeenPass& seen;
  const KvHistory& history;
  // The same pass of the model in fp64 and of the model in the run's dtype; null: not known.
  const Pass* exact = nullptr;
  const Pass* rounded = nullptr;
};

struct OpJudgeOptions {
  DType dtype = DType::bf16;
  int64_t page_size = 0;  // 0: not known
  double limit_scale = 1;
  int threads = 0;                       // that measure; 0: one a core
  bool partial = false;                  // the trace was not meant to hold every tensor
  std::map<std::string, Schema> schema;  // declared, by point name
  Accumulator accumulator = Accumulator::fp32;
  Limits limits;
};

// Judges the nodes of one place of a pass, each on its own recorded inputs.
class OpJudge {
 public:
  OpJudge(Oracle& oracle, OpJudgeOptions options);

  void begin_pass(const SeenPass& pass);
  // Whether any pass so far has a tensor of the point, of whatever layer.
  bool has_seen(const Point& point) const { return seen_.contains(order_of(point)); }
  // One outcome for each of seen.nodes_of(place), in that order. `inputs` are inputs_of(place).
  std::vector<NodeOutcome> judge(const Place& place, const std::vector<Place>& inputs,
                                 const JudgedPass& pass);
  // Of all rows of the place that were judged by numbers so far, whatever their pass and request.
  Moments pooled(const Place& place) const;
  const Schemas& schemas() const { return schemas_; }
  // What the nodes reached of their limits, by op; of points that round once and no others.
  std::map<OpKind, Reached> reached() const;

 private:
  struct Group;     // nodes that the oracle is asked for together
  struct Block;     // some of its rows, and all that they are measured by
  struct Measured;  // one of them

  bool rejected(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                const NodeRows& node, DType dtype, NodeOutcome& outcome) const;
  void judge_numbers(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                     Group& group);
  // False when the oracle's shape is another: the nodes are structural then.
  bool judge_block(const Place& place, const std::vector<Place>& inputs, const JudgedPass& pass,
                   Group& group, size_t first, size_t count);
  // What shares a block of that many elements; null when it is not worth it.
  ThreadPool* threads_for(int64_t elements);
  Budget budget_of_row(const Block& block, size_t row, Schema schema) const;
  Measured measure_row(const Block& block, const Group& group, size_t row) const;
  void measure_block(const Block& block, Group& group);
  void judge_member(const Place& place, const Shape& row_shape, Group& group, size_t member);
  NodeOutcome judge_cache(const Place& place, const std::vector<Place>& inputs,
                          const JudgedPass& pass, const NodeRows& node);
  NodeOutcome judge_indices(const Place& place, const std::vector<Place>& inputs,
                            const JudgedPass& pass, const NodeRows& node);
  DType dtype_at(const Place& place) const;
  // Whether the limits that were measured of kernels like the engine's hold for the op too.
  bool measured(OpKind op) const;

  Oracle& oracle_;
  std::unique_ptr<ThreadPool> threads_;  // null before there was something worth sharing
  OpJudgeOptions options_;
  using Key = std::pair<int, int>;  // order of the point, layer
  std::set<Key> misshapen_;         // in this pass
  std::set<int> seen_;              // order of the points that have tensors
  Schemas schemas_;
  std::map<OpKind, Reached> reached_;  // by single nodes
  std::map<std::pair<Key, Schema>, DistinctMoments> pools_;
};

// What a node's measure comes to. row_shape: the axes after the rows.
NodeOutcome outcome_of(Measure measure, const Shape& row_shape, double limit_scale);

}  // namespace lockstep
