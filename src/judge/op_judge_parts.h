// The parts of an OpJudge's work on a place: op_judge.cc gathers nodes into groups and makes
// outcomes of what they came to, op_questions.cc asks the oracle about blocks of their rows, also
// before their turn (op_expected.cc), and op_blocks.cc measures them.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/judge/layouts.h"
#include "src/judge/op_judge.h"

namespace lockstep {

// Elements of a block that are worth waking threads for.
inline constexpr int64_t kSharedElements = 1 << 16;
// And those that are measured before they are added up: nine numbers each are kept until then.
inline constexpr size_t kAtATime = 1 << 19;

inline std::pair<int, int> key_of(const Place& place) {
  return {place.point->order(), place.layer};
}

// The axes after the rows.
inline Shape without_rows(const Shape& shape) { return Shape(shape.extents().subspan(1)); }

struct OpJudge::Group {
  struct Member {
    Member(const NodeRows* node_, NodeOutcomes* outcomes_) : node(node_), outcomes(outcomes_) {}
    // Its numbers under the contract that was tried last.
    Measure measured() const;
    const NodeRows* node;
    NodeOutcomes* outcomes;
    std::optional<Meter> meter;      // of the contract that is being tried
    std::optional<Measure> measure;  // what that came to, where it was asked beforehand
    RowScales scales;                // of the same contract
    ErrorSums sums;
    RowOrders orders;  // of its wrong rows, under whatever contract
  };
  std::vector<Member> members;
  PlacePool* pool = nullptr;     // of the contract that is being tried; null: none takes its rows
  RowScales* scales = nullptr;   // the same, of a norm whose sum is not known bit for bit
  std::vector<Row> rows;         // of all members
  std::vector<int32_t> tokens;   // fed at the rows
  std::vector<int64_t> lengths;  // of the rows' requests, after the pass
  std::vector<size_t> owner;     // member of each row
  CacheRead cache;               // attention: what its one request reads
  DerivedKeysValues derived;     // the same, where it is hidden
  const RecordedTensor* tensor = nullptr;
  bool blurred_inputs = false;  // by what is hidden before it
  bool blurred = false;         // the same, of what its contract reads
  bool knows_sum = true;        // norm: the tensors that its input is the rounded sum of are known
  bool compared = false;        // with the two models, which no contract changes
  bool answered = false;        // no number says what came out
  bool exact_angles = false;    // rope: its tables are not read, but made
  bool merged = false;          // attention: of its shares, which it reads instead of the cache

  // Whether it is of a norm that reads a sum which is known as stored alone, or was computed but
  // for an error: what its rows are off by says more then. An add reads two.
  bool has_scales(RoundingContract contract, std::span<const Place> read) const {
    return blurred && read.size() == 1 && read[0].point->op == OpKind::add &&
           (blurred_inputs || is_of_sum(contract));
  }

  // Gives each member this outcome, of no numbers.
  void refuse(const NodeOutcome& outcome) {
    for (Member& member : members) *member.outcomes = {outcome};
  }
};

struct OpJudge::Block {
  const Place& place;
  DType dtype, inside;  // of its results, and that it rounds to on the way
  size_t first;         // row of the group
  std::span<const Row> rows;
  const Exact& exact;
  Numbers carried;  // variance of what is hidden before it; empty: none
  TensorView got, exact_model, rounded_model;
  ThreadPool* threads;
  double gain;  // of rows that the oracle measured
};

// Whether the op norms a sum, which kernels may fuse with it.
inline bool reads_sum(const Place& place, const std::vector<Place>& inputs) {
  return place.point->op == OpKind::norm && inputs.at(0).point->op == OpKind::add;
}

struct OpJudge::Measured {
  ErrorSums sums;
  bool wrong = false;  // an element is over its budget
  std::optional<Order> order;
};

struct OpJudge::Question {
  OracleCall call;
  std::vector<Place> read;  // whose tensors `inputs` are
  std::vector<SelectedRows> inputs;
  SelectedRows got;  // what is judged

  void pick(const std::vector<Place>& places, const auto& tensor_of) {
    read = places;
    for (const Place& place : places) inputs.emplace_back(tensor_of(place), call.rows);
    for (const SelectedRows& input : inputs) {
      call.inputs.push_back(input.view());
      call.owners.push_back(input.owner());
    }
  }
};

// A question that the oracle is asked, in the background or when the answer is wanted.
struct OpJudge::Asked {
  Asked(Oracle& asked, Question about, size_t first_)
      : oracle(asked), question(std::move(about)), first(first_) {}
  Asked(const Asked&) = delete;
  // Whoever answers reads the question.
  ~Asked() { wait(); }

  // then: is done with the answer by the thread that has it; may be empty.
  void begin(Background& background, std::function<void(const Exact&)> then = {}) {
    by = &background;
    ++by->waited_for;
    background.begin([this, then = std::move(then)] {
      try {
        found = oracle.evaluate(question.call);
        if (then) then(found);
      } catch (...) {
        failure = std::current_exception();
      }
    });
  }
  Exact answer() {
    if (!by) return oracle.evaluate(question.call);
    wait();
    if (failure) std::rethrow_exception(failure);
    return std::move(found);
  }

  void wait() {
    if (!by) return;
    --by->waited_for;
    std::exchange(by, nullptr)->wait();
  }

  Oracle& oracle;
  Question question;
  size_t first;              // row of the group
  Background* by = nullptr;  // null: nobody answers it now
  Exact found;
  std::exception_ptr failure;
};

// The place that is judged or one after it, and its first block once that was asked about. Where
// that is all of its rows, whoever has the answer measures them too, each thread those of another
// place: the members of its group have come to their measures then.
struct OpJudge::Expected {
  Expected(const Place& place_, const std::vector<Place>& inputs_, const JudgedPass& pass_)
      : place(place_), inputs(inputs_), pass(&pass_) {}

  Place place;
  std::vector<Place> inputs;
  const JudgedPass* pass;
  Group group;
  RecordedTensor of_exact, of_rounded;  // of the two models, in host memory: what is read of them
  std::vector<Meter::Row> rows;         // that were measured
  bool is_measured = false;
  std::unique_ptr<Asked> asked;  // null: not yet, or it is not known what will be asked
  bool was_asked = false;        // or found to be none that is
};

}  // namespace lockstep
