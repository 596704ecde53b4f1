// The door to the tables: finds those of an op's kind, numbers their rows, and evaluates a row for
// one value. Tables of the kind come before those of any op, so that the more telling words win
// where two rows give the same numbers. LibTorch's threads and errors are kept in here (in_torch).
#include "reference/hypotheses/hypotheses.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <array>

#include "reference/bridge.h"
#include "reference/hypotheses/asked.h"

namespace lockstep {
namespace {

using Table = std::span<const Hypothesis> (*)();

// A kind may have several tables; an empty place is null.
struct KindTables {
  OpKind kind;
  std::array<Table, 3> tables;
};
constexpr KindTables kTables[] = {
    {OpKind::gather, {gather_hypotheses}},
    {OpKind::norm, {norm_hypotheses}},
    {OpKind::linear, {linear_hypotheses, quantised_linear_hypotheses}},
    {OpKind::rope, {rope_hypotheses}},
    {OpKind::attention, {attention_hypotheses, softmax_hypotheses, quantised_attention_hypotheses}},
    {OpKind::silu_mul, {silu_mul_hypotheses}},
    {OpKind::add, {add_hypotheses}},
    {OpKind::softmax, {expert_weight_hypotheses}},
    {OpKind::weighted_sum, {weighted_sum_hypotheses}},
    {OpKind::expert_linear, {expert_linear_hypotheses}},
};

// The hypotheses about one op in one pass. Borrows the recorded tensors of the pass, which must
// outlive it; keeps those that it has widened to fp64.
class OfOp final : public OpHypotheses {
 public:
  OfOp(const OpInPass& op, const HeldModel& model) : asked_(op, model) {
    for (const KindTables& of_kind : kTables)
      if (of_kind.kind == op.call.place.point->op)
        for (const Table table : of_kind.tables) add(table);
    add(any_hypotheses);
  }

  // Numbers are those of rows_, so that a guess is told of again by its number and value.
  std::vector<Guess> guesses() override {
    std::vector<Guess> all;
    in_torch([&] {
      for (size_t i = 0; i < rows_.size(); ++i) {
        const int number = static_cast<int>(i);
        if (!rows_[i]->values)
          all.push_back({number});
        else
          for (const double value : rows_[i]->values(asked_)) all.push_back({number, value});
      }
    });
    return all;
  }

  // Nothing where the hypothesis does not apply, or its result has another size than what was
  // stored.
  Numbers evaluate(const Guess& guess) override {
    Numbers numbers;
    in_torch([&] {
      const at::Tensor result = rows_.at(guess.number)->compute(asked_, guess.value);
      if (result.defined() && result.numel() == asked_.op().got.count())
        numbers = to_numbers(result.contiguous());
    });
    return numbers;
  }

  std::string says(const Guess& guess) const override {
    return fmt::format(fmt::runtime(rows_.at(guess.number)->says), guess.value);
  }

 private:
  void add(Table table) {
    if (table == nullptr) return;
    for (const Hypothesis& row : table()) rows_.push_back(&row);
  }

  Asked asked_;
  std::vector<const Hypothesis*> rows_;
};

// Owns the weights in fp64 for as long as a run is explained.
class All final : public Hypotheses {
 public:
  All(const Checkpoint& checkpoint, const ReferenceOptions& options)
      : weights_(checkpoint, options, DType::f64),
        recipe_(read_recipe(checkpoint.config_text(), checkpoint.dir() + "/config.json")),
        model_{checkpoint.config(), weights_, recipe_, options.dtype} {}

  std::unique_ptr<OpHypotheses> of(const OpInPass& op) override {
    return std::make_unique<OfOp>(op, model_);
  }

 private:
  HeldWeights weights_;
  Recipe recipe_;
  HeldModel model_;
};

}  // namespace

std::unique_ptr<Hypotheses> make_hypotheses(const Checkpoint& checkpoint,
                                            const ReferenceOptions& options) {
  return std::make_unique<All>(checkpoint, options);
}

}  // namespace lockstep
