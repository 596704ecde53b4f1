// The door to the tables: finds those of an op's kind, numbers their rows, and evaluates a row for
// one value. Tables of the kind come before those of any op, so that the more telling words win
// where two rows give the same numbers. LibTorch's threads and errors are kept in here (in_torch).
#include "reference/hypotheses/hypotheses.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>

#include "reference/bridge.h"
#include "reference/hypotheses/asked.h"
#include "reference/hypotheses/rotary.h"
#include "src/judge/no_memory.h"

namespace lockstep {
namespace {

using Table = std::span<const Hypothesis> (*)();

struct KindTable {
  Table of = nullptr;
  // Each row of a result is made of the same row of its inputs alone, but for Scope::pass.
  bool rows_apart = false;
};
// A kind may have several tables; an empty place is null.
struct KindTables {
  OpKind kind;
  std::array<KindTable, 4> tables;
};
constexpr KindTables kTables[] = {
    {OpKind::gather, {{{gather_hypotheses}}}},
    {OpKind::norm, {{{norm_hypotheses}}}},
    {OpKind::linear,
     {{{linear_hypotheses, true},
       {fused_qkv_hypotheses, true},
       {quantised_linear_hypotheses, true}}}},
    {OpKind::rope, {{{rope_hypotheses}, {rope_position_hypotheses}}}},
    {OpKind::partial_attention, {{{share_hypotheses}}}},
    {OpKind::log_sum_exp, {{{share_hypotheses}}}},
    {OpKind::attention,
     {{{attention_hypotheses},
       {softmax_hypotheses, true},
       {quantised_attention_hypotheses},
       {key_hypotheses}}}},
    {OpKind::silu_mul, {{{silu_mul_hypotheses}}}},
    {OpKind::add, {{{add_hypotheses}}}},
    {OpKind::softmax, {{{expert_weight_hypotheses}}}},
    {OpKind::weighted_sum, {{{weighted_sum_hypotheses}}}},
    {OpKind::expert_linear, {{{expert_linear_hypotheses}}}},
};

// The same op in the rows OpInPass::few alone, which are copied.
struct FewRows {
  FewRows(const OpInPass& whole, const HeldModel& model) : op(narrowed(whole)), asked(op, model) {}

  OpInPass narrowed(const OpInPass& whole) {
    OpInPass some{.call = whole.call,
                  .got = picked(whole.got, whole.few),
                  .caches = whole.caches,
                  .pages = whole.pages,
                  .page_size = whole.page_size};
    const auto size = static_cast<size_t>(whole.got.row_size());
    std::vector<double> right;
    for (const size_t r : whole.few) {
      rows.push_back(whole.call.rows[r]);
      tokens.push_back(whole.call.tokens[r]);
      lengths.push_back(whole.call.lengths[r]);
      some.pass_rows.push_back(whole.pass_rows[r]);
      for (size_t i = 0; i < size; ++i) right.push_back(whole.right[r * size + i]);
    }
    some.right = std::move(right);
    some.call.rows = rows, some.call.tokens = tokens, some.call.lengths = lengths;
    for (TensorView& input : some.call.inputs) input = picked(input, whole.few);
    some.other = [this, &whole](const Place& place) {
      const TensorView all = whole.other ? whole.other(place) : TensorView{};
      return all.empty() ? all : picked(all, whole.few);
    };
    return some;
  }

  TensorView picked(const TensorView& all, const std::vector<size_t>& few) {
    std::vector<int64_t> extents(all.shape.extents().begin(), all.shape.extents().end());
    extents[0] = std::ssize(few);
    const lockstep::Tensor& copy = copies.emplace_back(Shape(extents), all.dtype);
    const int64_t bytes = all.row_size() * size_of(all.dtype);
    for (size_t i = 0; i < few.size(); ++i)
      std::memcpy(copy.as<char>() + i * bytes, all.as<char>() + few[i] * bytes, bytes);
    return copy;
  }

  std::deque<lockstep::Tensor> copies;
  std::vector<Row> rows;
  std::vector<int32_t> tokens;
  std::vector<int64_t> lengths;
  OpInPass op;
  Asked asked;
};

// A guess may come from another layer, pass or op, whose heads, outputs or rows this one has not:
// what LibTorch, a check or a container refuses then says nothing of this op. Whatever else ends a
// guess, no memory above all, is counted, as nobody knows what it would have said. The judgement,
// which knows nothing of guesses, goes on either way.
class Guarded {
 public:
  void operator()(const std::function<void()>& body) {
    try {
      in_torch(body);
    } catch (const NoMemory& lack) {
      failed(lack.what());
    } catch (const Error&) {
    } catch (const std::out_of_range&) {
    } catch (const std::bad_alloc&) {
      failed("there is no memory left");
    } catch (const std::exception& error) {
      failed(error.what());
    }
  }

  std::string trouble() const {
    return count_ == 0 ? "" : fmt::format("{} guesses failed, the first: {}", count_, first_);
  }

 private:
  void failed(const char* why) {
    if (count_++ == 0) first_ = why;
  }

  int64_t count_ = 0;
  std::string first_;
};

// The hypotheses about one op in one pass. Borrows the recorded tensors of the pass, which must
// outlive it; keeps those that it has widened to fp64.
class OfOp final : public OpHypotheses {
 public:
  OfOp(const OpInPass& op, const HeldModel& model, Guarded& if_it_fits)
      : asked_(op, model), if_it_fits_(if_it_fits) {
    for (const KindTables& of_kind : kTables)
      if (of_kind.kind == op.call.place.point->op)
        for (const KindTable& table : of_kind.tables) add(table);
    add({any_hypotheses});
    // They are about columns, of which those of a share are not told apart.
    if (!op.call.place.point->is_of_shares()) add({told_hypotheses});
  }

  // Numbers are those of rows_, so that a guess is told of again by its number and value.
  std::vector<Guess> guesses() override {
    std::vector<Guess> all;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const int number = static_cast<int>(i);
      if (!rows_[i]->values) {
        all.push_back({number});
        continue;
      }
      std::vector<double> values;
      if_it_fits_([&] { values = rows_[i]->values(asked_); });
      for (const double value : values) all.push_back({number, value});
    }
    return all;
  }

  // Nothing where the hypothesis does not apply, or its result has another size than what was
  // stored.
  Numbers evaluate(const Guess& guess) override { return evaluated(guess, asked_); }

  // Where the rows are all that there are, asking twice would cost more.
  Numbers evaluate_few(const Guess& guess) override {
    const size_t few = asked_.op().few.size();
    if (!apart_.at(guess.number) || few == 0 || few == asked_.op().call.rows.size()) return {};
    if (!few_) few_ = std::make_unique<FewRows>(asked_.op(), asked_.model());
    return evaluated(guess, few_->asked);
  }

  std::string says(const Guess& guess) const override {
    const Hypothesis& row = row_of(guess);
    if (row.of_two != nullptr && guess.value == 0) return row.of_two;
    return row.words ? row.words(guess.value) : fmt::format(fmt::runtime(row.says), guess.value);
  }

  bool is_general(const Guess& guess) const override { return row_of(guess).scope == Scope::told; }
  bool picks_rows(const Guess& guess) const override { return row_of(guess).scope == Scope::rows; }

 private:
  void add(const KindTable& table) {
    if (table.of == nullptr) return;
    for (const Hypothesis& row : table.of()) {
      rows_.push_back(&row);
      apart_.push_back(table.rows_apart && row.scope != Scope::pass);
    }
  }
  const Hypothesis& row_of(const Guess& guess) const { return *rows_.at(guess.number); }
  Numbers evaluated(const Guess& guess, const Asked& asked) const {
    Numbers numbers;
    if_it_fits_([&] {
      const at::Tensor result = row_of(guess).compute(asked, guess.value);
      if (result.defined() && result.numel() == asked.op().got.count())
        numbers = to_numbers(result.contiguous());
    });
    return numbers;
  }

  Asked asked_;
  Guarded& if_it_fits_;
  std::unique_ptr<FewRows> few_;
  std::vector<const Hypothesis*> rows_;
  std::vector<bool> apart_;  // by row of the tables
};

// Owns the weights in fp64 for as long as a run is explained.
class All final : public Hypotheses {
 public:
  All(const Checkpoint& checkpoint, const ReferenceOptions& options)
      : weights_(checkpoint, options, DType::f64),
        recipe_(read_recipe(checkpoint.config_text(), checkpoint.dir() + "/config.json")),
        model_{checkpoint.config(), weights_, recipe_, options.dtype} {}

  std::unique_ptr<OpHypotheses> of(const OpInPass& op) override {
    return std::make_unique<OfOp>(op, model_, if_it_fits_);
  }
  std::string trouble() const override { return if_it_fits_.trouble(); }

 private:
  HeldWeights weights_;
  Recipe recipe_;
  HeldModel model_;
  Guarded if_it_fits_;
};

}  // namespace

std::unique_ptr<Hypotheses> make_hypotheses(const Checkpoint& checkpoint,
                                            const ReferenceOptions& options) {
  return std::make_unique<All>(checkpoint, options);
}

}  // namespace lockstep
