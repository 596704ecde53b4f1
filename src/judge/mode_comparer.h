#pragma once

#include <deque>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "probes/recorder.h"
#include "src/judge/ledger.h"

namespace lockstep {

// Every row that a run showed, by place and token: what the same requests served in another way are
// lined up with. All tensors stay in memory, except attn.kv: its rows are those of K and V.
class BaselineRows {
 public:
  explicit BaselineRows(const Graph& graph);

  // The next pass of the run, recorded with its data.
  void add(Pass pass);
  // The row [1, axes of the point ...] of that place, an index into graph.places(). Empty: the
  // run did not show it. It is valid for as long as this lives.
  TensorView find(size_t place, const Row& row) const;

  const Graph& graph() const { return graph_; }

 private:
  struct Spot {
    const RecordedTensor* tensor;
    int64_t row;
  };
  Graph graph_;
  std::vector<Place> places_;
  std::deque<Pass> passes_;
  std::vector<std::unordered_map<uint64_t, Spot>> spots_;  // by place, by (request, position)
};

// A mode in which several ranks compute the model together.
class ModeRanks {
 public:
  virtual ~ModeRanks() = default;
  // How far each element of a row that the ranks added up may lie from one that nobody cut: by the
  // roundings of what was added, and of all sums but the last. Empty: the ranks add up no such row.
  virtual std::vector<double> slack_of_sum(const Place& place, const Row& row) const = 0;
  // The rank that holds the finding's element; "": all of them do.
  virtual std::string rank_of(const Finding& finding) const = 0;
};

// Compares a run with a base run, op by op and without a reference. After a tensor was compared its
// rows are overwritten by the base's, so that every op of the mode has exactly the inputs of the
// base and each is held to its own promise, however far a difference would have spread: a
// substitution, and the only sink that writes. Lined up by (request, position, layer, point).
//   all but the products with weights      equal bits: ops.h promises that a row's bits depend on
//                                          the row's own inputs alone
//   linear, expert_linear                  at most two budgets apart: the half ulp that each of
//                                          the two may be off, and 8 K 2^-24 rms(row) for each sum
//                                          of K products. The weights are not known here; for
//                                          inputs and weights without structure sum |a||w| is
//                                          0.64 sqrt(K) rms, so this is lambda sqrt(K) u sum|a||w|
//                                          with room to spare.
//   what ranks added up                    that, and the roundings of what they added and of sums
//                                          in between; of a lookup, equal numbers
//   attn.kv                                the bits that the base wrote to the cache
// What must be equal is compared by its bytes, so that a NaN of the same bits is no difference and
// -0 for 0 is one.
class ModeComparer final : public Sink {
 public:
  // Which two ways of serving are compared, for people, and whose rows are whose.
  struct Pairing {
    std::string base, mode;
    std::vector<int32_t>
        base_of;  // by the mode's request: the base's; -1: a stranger, not compared
    const ModeRanks* ranks = nullptr;                      // borrowed; null: one process computes
    float fill = std::numeric_limits<float>::quiet_NaN();  // of the mode's slots, until written
  };

  // `base` and `ledger`, which gets an outcome for every node, are borrowed.
  ModeComparer(const BaselineRows& base, Pairing pairing, Ledger& ledger);

  bool wants(const Point&, int) const override { return true; }
  bool writes() const override { return true; }
  void begin(const PassInfo& pass) override;
  void record(const Record& record) override;
  void end() override;

 private:
  struct Group {  // consecutive rows of one request
    int32_t request = 0, base = -1;
    size_t first = 0, count = 0;
  };
  std::vector<Group> groups_of(std::span<const Row> rows) const;
  int32_t base_of(int32_t request) const;
  // Says which rows of K and V, as they are read back, nobody wrote; "": none of them.
  std::string unwritten(size_t place, const Record& record, const Group& group) const;
  NodeOutcome compare(size_t place, const Record& record, const Group& group) const;
  void compare_row(size_t place, const TensorView& want, const TensorView& got, int32_t position,
                   NodeOutcome& outcome) const;
  TensorView wanted(size_t place, const Row& base_row, std::vector<char>& joined) const;
  void substitute(size_t place, const Record& record, const Group& group) const;
  double limit(size_t place, const TensorView& want, const Row& base_row) const;

  const BaselineRows& base_;
  Pairing pairing_;
  Ledger& ledger_;
  std::vector<std::vector<size_t>> inputs_;  // of every place, as indices
  PassInfo pass_;
  std::set<std::pair<size_t, int32_t>> entered_;        // (place, request) of this pass
  std::map<std::pair<int, int32_t>, int> wrong_reads_;  // (layer, request): finding of attn.kv
};

}  // namespace lockstep
