// The guess of a part: number = that of the whole op x (ranks + 1) + who: 0 for every rank, else
// one more than the rank. A whole op is computed once for all of them.
#include "src/ranks/judge/rank_hypotheses.h"

#include <fmt/format.h>

#include "kernels/base/tensor.h"

namespace lockstep {
namespace {

// The rank whose part of a row, of those extents, element i lies in; the first of several.
int rank_of_element(const std::vector<RankPlan>& plans, const Point& point, const Shape& shape,
                    int64_t i) {
  const Shard first = *plans[0].shard_of(point);
  int64_t after = 1;
  for (int axis = first.axis + 1; axis < shape.rank(); ++axis) after *= shape[axis];
  const int64_t at = i / after % shape[first.axis];
  for (int rank = static_cast<int>(std::ssize(plans)) - 1; rank > 0; --rank)
    if (at >= plans[rank].shard_of(point)->offset &&
        plans[rank].shard_of(point)->offset > plans[rank - 1].shard_of(point)->offset)
      return rank;
  return 0;
}

// A guess about the whole op, seen in one rank's part of the output alone: what other ranks hold
// stays as the oracle has it. So a cause in one rank's kernel explains that part, and one that all
// of them have explains the whole.
class OfParts final : public OpHypotheses {
 public:
  OfParts(std::unique_ptr<OpHypotheses> whole, const OpInPass& op,
          const std::vector<RankPlan>& plans)
      : whole_(std::move(whole)),
        op_(op),
        plans_(plans),
        each_(static_cast<int>(plans.size()) + 1) {}

  std::vector<Guess> guesses() override {
    std::vector<Guess> all;
    for (const Guess& guess : whole_->guesses())
      for (int who = 0; who < each_; ++who)
        all.push_back({guess.number * each_ + who, guess.value});
    return all;
  }

  Numbers evaluate(const Guess& guess) override {
    const Guess of_whole = whole_guess(guess);
    if (!(of_whole == last_)) {
      last_ = of_whole;
      numbers_ = whole_->evaluate(of_whole);
    }
    const int who = guess.number % each_;
    if (numbers_.empty() || who == 0) return numbers_;
    std::vector<double> mixed(op_.right.begin(), op_.right.end());
    for (size_t i = 0; i < mixed.size(); ++i)
      if (rank_of_element(plans_, *op_.call.place.point, op_.got.shape, static_cast<int64_t>(i)) ==
          who - 1)
        mixed[i] = numbers_[i];
    return mixed;
  }

  std::string says(const Guess& guess) const override {
    const int who = guess.number % each_;
    const std::string what = whole_->says(whole_guess(guess));
    return who == 0 ? what : fmt::format("{} in rank {}", what, who - 1);
  }

  bool is_general(const Guess& guess) const override {
    return whole_->is_general(whole_guess(guess));
  }
  bool picks_rows(const Guess& guess) const override {
    return whole_->picks_rows(whole_guess(guess));
  }

 private:
  Guess whole_guess(const Guess& guess) const { return {guess.number / each_, guess.value}; }

  std::unique_ptr<OpHypotheses> whole_;
  const OpInPass& op_;
  const std::vector<RankPlan>& plans_;
  int each_;
  Guess last_{-1, 0};
  Numbers numbers_;
};

// A sum over the ranks, given what each adds: number 0: rank 0's alone; then without each of them,
// and with each of them twice.
class OfSum final : public OpHypotheses {
 public:
  OfSum(const OpInPass& op, int ranks) : op_(op), ranks_(ranks) {}

  std::vector<Guess> guesses() override {
    std::vector<Guess> all;
    for (int number = 0; number <= 2 * ranks_; ++number) all.push_back({number, 0});
    return all;
  }

  Numbers evaluate(const Guess& guess) override {
    const TensorView& partial = op_.call.inputs.at(0);
    const int64_t rows = partial.rows(), size = partial.row_size() / ranks_;
    std::vector<double> made(static_cast<size_t>(rows * size));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < size; ++i)
        for (int rank = 0; rank < ranks_; ++rank)
          made[row * size + i] +=
              times(guess, rank) * value_at(partial, (row * ranks_ + rank) * size + i);
    return made;
  }

  std::string says(const Guess& guess) const override {
    if (guess.number == 0) return "what rank 0 adds, and no other rank's";
    const int rank = (guess.number - 1) % ranks_;
    return guess.number <= ranks_ ? fmt::format("the sum without rank {}'s part", rank)
                                  : fmt::format("the sum with rank {}'s part twice", rank);
  }

 private:
  double times(const Guess& guess, int rank) const {
    if (guess.number == 0) return rank == 0 ? 1 : 0;
    if ((guess.number - 1) % ranks_ != rank) return 1;
    return guess.number <= ranks_ ? 0 : 2;
  }

  const OpInPass& op_;
  int ranks_;
};

// Logits in parts that follow each other in another order: the ranks reversed.
class OfGathered final : public OpHypotheses {
 public:
  OfGathered(std::unique_ptr<OpHypotheses> whole, const OpInPass& op,
             const std::vector<RankPlan>& plans)
      : whole_(std::move(whole)), op_(op), plans_(plans) {}

  std::vector<Guess> guesses() override {
    std::vector<Guess> all = whole_->guesses();
    all.push_back({kReversed, 0});
    return all;
  }

  // Parts are gathered in room for the largest.
  Numbers evaluate(const Guess& guess) override {
    if (guess.number != kReversed) return whole_->evaluate(guess);
    const int64_t room = plans_[0].vocab_room, whole = plans_[0].whole.vocab;
    if (plans_.back().vocab.count != room) return {};
    std::vector<double> made(op_.right.size());
    const auto ranks = std::ssize(plans_);
    for (size_t i = 0; i < made.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / whole, at = static_cast<int64_t>(i) % whole;
      made[i] = op_.right[row * whole + (ranks - 1 - at / room) * room + at % room];
    }
    return made;
  }

  std::string says(const Guess& guess) const override {
    return guess.number == kReversed ? "the ranks' parts in reversed order" : whole_->says(guess);
  }

 private:
  static constexpr int kReversed = 1 << 20;

  std::unique_ptr<OpHypotheses> whole_;
  const OpInPass& op_;
  const std::vector<RankPlan>& plans_;
};

class None final : public OpHypotheses {
 public:
  std::vector<Guess> guesses() override { return {}; }
  Numbers evaluate(const Guess&) override { return {}; }
  std::string says(const Guess&) const override { return ""; }
};

}  // namespace

RankHypotheses::RankHypotheses(std::unique_ptr<Hypotheses> whole, const ModelConfig& config,
                               int ranks)
    : whole_(std::move(whole)) {
  for (int rank = 0; rank < ranks; ++rank) plans_.push_back(plan_of(config, rank, ranks));
}

std::unique_ptr<OpHypotheses> RankHypotheses::of(const OpInPass& op) {
  const Point& p = *op.call.place.point;
  if (is_partial(p)) return std::make_unique<None>();
  const auto ranks = std::ssize(plans_);
  const bool sums = !op.call.inputs.empty() && is_sum(p) && op.call.inputs[0].shape.rank() >= 3 &&
                    op.call.inputs[0].shape[1] == ranks;
  if (sums) return std::make_unique<OfSum>(op, static_cast<int>(ranks));
  if (is_sum(p)) return std::make_unique<None>();
  auto whole = whole_->of(op);
  if (p == point("logits")) return std::make_unique<OfGathered>(std::move(whole), op, plans_);
  if (!plans_[0].shard_of(p)) return whole;
  return std::make_unique<OfParts>(std::move(whole), op, plans_);
}

}  // namespace lockstep
