// The chain of a region is computed with each hidden result rounded as an engine stores it, and
// once more with none rounded, as a fused kernel has it: where the engine did the one or the other,
// the right chain ends within one rounding of what is recorded, and so does a hypothesis that is
// the cause. That is asked of one, for a region's budget, which holds all that hidden ops may
// round, would let many pass. Beside the rounding it has room for what the fp32 arithmetic of
// hidden ops comes to there: nothing in 16 bits, and hundreds of roundings in fp32.
#include "src/causes/region.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "src/causes/chain.h"
#include "src/judge/carried.h"

namespace lockstep {
namespace {

// Rows of a pass and ops of a region that are searched, at most.
constexpr int64_t kMostRows = 512;
constexpr size_t kMostOps = 40;
// A hypothesis that leaves so much of the mean square of what is wrong is no cause.
constexpr double kFar = 0.5;
// So many deviations of right hidden arithmetic, known by 16 samples to a fifth, are allowed: less
// than half as many as in the budget that found the place wrong.
constexpr double kNoiseDeviations = 4;

// Rows of the recorded place by which guesses are ruled out.
constexpr size_t kFewRows = 8;

using Stores = OpChain::Stores;
using Values = OpChain::Values;

class Region final : public RegionInPass {
 public:
  Region(const Pass& pass, const Manifest& manifest, const Judge& judge, Oracle& oracle,
         Hypotheses& hypotheses)
      : pass_(pass), manifest_(manifest), judge_(judge), oracle_(oracle), hypotheses_(hypotheses) {}

  bool make(const Place& place, const std::vector<Place>& hidden, const std::set<int32_t>& wrong);
  std::vector<Tried> search(const std::function<void()>& before_each) override;
  std::optional<Fit> fit(const RegionGuess& guess) override;

 private:
  struct Node {
    bool is_wrong = false;
    std::vector<size_t> rows;
  };
  // Some rows of the recorded place.
  struct Held {
    std::vector<double> got, want, limit;
    WrongNode as(DType dtype) const { return {dtype, got, want, limit}; }
  };
  // A question with the hypotheses that are asked by it.
  struct Asked {
    OpChain::Question question;
    std::unique_ptr<OpHypotheses> by;
  };

  bool add_noise();
  void choose_few();
  Held held(std::span<const size_t> rows, Stores stores) const;
  // The numbers are those of all rows of the recorded place.
  Fit fit_of_numbers(std::span<const double> hypothesis, Stores stores) const;
  // The last op's result where a hypothesis makes those numbers of each of the ops, none of which
  // reads another. Empty: it cannot be computed.
  std::vector<double> carried(OpChain& chain, const std::vector<size_t>& ops,
                              const std::vector<Numbers>& numbers, Stores stores) const;
  std::vector<size_t> few_of(size_t i) const;
  bool is_far(const RegionGuess& guess);
  std::vector<std::vector<size_t>> siblings() const;
  void search(const std::vector<size_t>& ops, const std::function<void()>& before_each,
              std::vector<Tried>& all);
  OpHypotheses* hypotheses_of(size_t i, Stores stores);
  bool is_last(size_t op) const { return op + 1 == chain_->ops().size(); }

  const Pass& pass_;
  const Manifest& manifest_;
  const Judge& judge_;
  Oracle& oracle_;
  Hypotheses& hypotheses_;
  std::optional<OpChain> chain_;  // the last op is the recorded one
  std::array<Values, 2> right_;
  std::array<std::vector<double>, 2> want_, limit_;  // of the recorded place
  const RecordedTensor* got_ = nullptr;
  std::vector<double> stored_;
  std::vector<Node> nodes_;
  // Some wrong rows by which a guess may be ruled out before all are computed.
  std::vector<size_t> few_rows_;
  std::optional<OpChain> few_;
  // By op, of the stores that they are asked with.
  std::array<std::vector<std::unique_ptr<Asked>>, 2> asked_;
};

// Right kernels of the hidden ops differ by their fp32 arithmetic. Errors of that size, drawn at
// random, are sent through the chain, and the budgets get room for what comes of them.
bool Region::add_noise() {
  const Values& right = right_[OpChain::unrounded];
  std::vector<std::vector<float>> errors;
  for (size_t i = 0; i + 1 < chain_->ops().size(); ++i) {
    OpChain::Question question;
    if (!chain_->ask(i, right, question)) return false;
    const OpChain::Answer answer = chain_->answer_of(i, question);
    errors.push_back(samples_of(answer.deviation, right[i].data.view().row_size(), i));
  }
  std::vector<double> squares(want_[OpChain::unrounded].size());
  for (int64_t s = 0; s < kErrorSamples; ++s) {
    Values values = right;
    for (size_t i = 0; i < chain_->ops().size(); ++i) {
      OpChain::Question question;
      if (!chain_->ask(i, values, question)) return false;
      question.op.call.for_budget = false;
      OpChain::Answer answer = chain_->answer_of(i, question);
      const bool last = i + 1 == chain_->ops().size();
      const size_t size = last ? 1 : right[i].data.view().row_size();
      for (size_t e = 0; e < answer.want.size(); ++e)
        if (last)
          squares[e] += std::pow(answer.want[e] - want_[OpChain::unrounded][e], 2);
        else
          answer.want[e] += errors[i][(e / size * kErrorSamples + s) * size + e % size];
      if (!last)
        chain_->put(i, answer.want, Shape(answer.shape.extents().subspan(1)), OpChain::unrounded,
                    values);
    }
  }
  for (std::vector<double>& limit : limit_)
    for (size_t e = 0; e < squares.size(); ++e)
      if (std::isfinite(squares[e]))
        limit[e] += kNoiseDeviations * std::sqrt(squares[e] / kErrorSamples);
  return true;
}

bool Region::make(const Place& place, const std::vector<Place>& hidden,
                  const std::set<int32_t>& wrong) {
  got_ = pass_.find(*place.point, place.layer);
  if (got_ == nullptr || got_->data.view().empty() || hidden.size() > kMostOps ||
      std::ssize(pass_.info.rows) > kMostRows || place.point->is_cache() ||
      row_of(place.point->op).makes_indices)
    return false;
  std::vector<Row> rows;
  for (const PassRow& fed : pass_.info.rows) rows.push_back(fed.row);
  chain_.emplace(pass_, manifest_, judge_, oracle_, got_->dtype);
  for (const Place& op : hidden) {
    if (op.point->is_cache()) continue;
    if (row_of(op.point->op).makes_indices || !chain_->add(op, rows)) return false;
  }
  if (!chain_->add(place, got_->rows)) return false;
  const size_t count = chain_->ops().size();
  for (const Stores stores : {OpChain::rounded, OpChain::unrounded}) {
    Values& values = right_[stores];
    values.resize(count);
    asked_[stores].resize(count);
    OpChain::Answer last{.wants_limit = true};
    const std::vector<bool> all(count, true), none(count);
    if (!chain_->run(0, all, none, values, stores, &last)) return false;
    if (last.shape != got_->data.view().shape) return false;
    want_[stores] = std::move(last.want);
    limit_[stores] = std::move(last.limit);
  }
  if (!add_noise()) return false;
  for (int64_t i = 0; i < got_->data.view().count(); ++i)
    stored_.push_back(value_at(got_->data, i));
  std::set<int32_t> requests;
  for (const Row& row : got_->rows) requests.insert(row.request);
  for (const int32_t request : requests) {
    Node& node = nodes_.emplace_back(Node{.is_wrong = wrong.contains(request)});
    for (size_t r = 0; r < got_->rows.size(); ++r)
      if (got_->rows[r].request == request) node.rows.push_back(r);
  }
  choose_few();
  return true;
}

// The wrong rows with the most elements over their own op's budget; where none is over, those that
// are furthest from what is right. It is counted in budgets: a row of large numbers may be further
// away than others are and tell nothing.
void Region::choose_few() {
  struct Wrong {
    int64_t over = 0;
    double squares = 0;
    size_t row = 0;
  };
  std::vector<Wrong> all;
  for (const Node& node : nodes_) {
    if (!node.is_wrong) continue;
    for (const size_t r : node.rows) {
      const Held of_row = held({&r, 1}, OpChain::rounded);
      const WrongNode row = of_row.as(got_->dtype);
      Wrong wrong{.squares = fit_of(row, row.want).right_squares, .row = r};
      for (size_t i = 0; i < row.got.size(); ++i) wrong.over += is_over(row, i) ? 1 : 0;
      all.push_back(wrong);
    }
  }
  std::ranges::stable_sort(all, [](const Wrong& a, const Wrong& b) {
    return std::pair(a.over, a.squares) > std::pair(b.over, b.squares);
  });
  for (size_t i = 0; i < std::min(all.size(), kFewRows); ++i) few_rows_.push_back(all[i].row);
  std::ranges::sort(few_rows_);
  std::vector<Row> rows;
  for (const size_t r : few_rows_) rows.push_back(got_->rows[r]);
  few_.emplace(chain_->with_few(rows));
}

// The rows of an op that the few rows of the last one are made of, by number; empty: all are.
std::vector<size_t> Region::few_of(size_t i) const {
  const std::vector<Row>&all = chain_->ops()[i].rows, &few = few_->ops()[i].rows;
  std::vector<size_t> numbers;
  if (few.size() == all.size()) return numbers;
  for (const Row& row : few)
    numbers.push_back(static_cast<size_t>(std::ranges::find(all, row) - all.begin()));
  return numbers;
}

Region::Held Region::held(std::span<const size_t> rows, Stores stores) const {
  const auto size = static_cast<size_t>(got_->data.view().row_size());
  Held held;
  for (const size_t r : rows)
    for (size_t i = r * size; i < (r + 1) * size; ++i) {
      held.got.push_back(stored_[i]);
      held.want.push_back(want_[stores][i]);
      held.limit.push_back(limit_[stores][i]);
    }
  return held;
}

Fit Region::fit_of_numbers(std::span<const double> hypothesis, Stores stores) const {
  const auto size = static_cast<size_t>(got_->data.view().row_size());
  Fit fit;
  for (const Node& node : nodes_) {
    std::vector<double> numbers;
    for (const size_t r : node.rows)
      numbers.insert(numbers.end(), hypothesis.begin() + r * size,
                     hypothesis.begin() + (r + 1) * size);
    const Held of_node = held(node.rows, stores);
    const WrongNode all = of_node.as(got_->dtype);
    fit.add(node.is_wrong ? fit_in_region(all, numbers) : fit_of_right(all, numbers));
  }
  return fit;
}

std::vector<double> Region::carried(OpChain& chain, const std::vector<size_t>& ops,
                                    const std::vector<Numbers>& numbers, Stores stores) const {
  Values values = right_[stores];
  const size_t count = chain.ops().size();
  std::vector<bool> changed(count), given(count);
  for (size_t i = 0; i < ops.size(); ++i) {
    const size_t op = ops[i];
    const OpChain& from = numbers[i].size() == static_cast<size_t>(right_[stores][op].shape.count())
                              ? *chain_
                              : chain;
    from.put(op, {numbers[i].begin(), numbers[i].size()},
             Shape(values[op].shape.extents().subspan(1)), stores, values);
    changed[op] = given[op] = true;
  }
  OpChain::Answer last;
  if (!chain.run(ops.front() + 1, changed, given, values, stores, &last)) return {};
  return std::move(last.want);
}

// Most guesses are, and few rows show it, with what these are made of, at a small share of the
// cost. A true cause explains nearly all of what is wrong there, however much of the distance is
// rounding: half leaves room. One that does not may be near all the same, as where hidden results
// were not stored; a cause that is small beside what these round is not found then.
bool Region::is_far(const RegionGuess& guess) {
  if (is_last(guess.ops.back()) || few_rows_.empty()) return false;
  std::vector<Numbers> numbers;
  for (const size_t op : guess.ops) {
    OpHypotheses* const asked = hypotheses_of(op, OpChain::rounded);
    if (asked == nullptr) return false;
    numbers.push_back(asked->evaluate_few(guess.guess));
    if (numbers.back().empty()) numbers.back() = asked->evaluate(guess.guess);
    if (numbers.back().empty()) return false;
  }
  const std::vector<double> made = carried(*few_, guess.ops, numbers, OpChain::rounded);
  if (made.empty()) return false;
  const Held of_few = held(few_rows_, OpChain::rounded);
  const Fit fit = fit_of(of_few.as(got_->dtype), made);
  return 2 * fit.elements < fit.of_elements && fit.squares > kFar * fit.right_squares;
}

// Ops of one kind, none of which is made of another: the projections of a layer, the norms or the
// rotations of q and k. All of them, and each two.
std::vector<std::vector<size_t>> Region::siblings() const {
  const std::vector<OpChain::Op>& ops = chain_->ops();
  std::vector<std::vector<size_t>> all;
  for (size_t i = 0; i + 1 < ops.size(); ++i) {
    std::vector<size_t> group = {i};
    for (size_t j = i + 1; j + 1 < ops.size(); ++j)
      if (ops[j].place.point->op == ops[i].place.point->op &&
          std::ranges::none_of(group, [&](size_t before) { return chain_->reads(j, before); }))
        group.push_back(j);
    if (group.size() > 2) all.push_back(group);
    for (size_t j = 1; j < group.size(); ++j) all.push_back({i, group[j]});
  }
  return all;
}

// Hypotheses that look for a number in what was stored find the right one in a hidden op.
OpHypotheses* Region::hypotheses_of(size_t i, Stores stores) {
  std::unique_ptr<Asked>& asked = asked_[stores][i];
  if (asked) return asked->by.get();
  asked = std::make_unique<Asked>();
  OpChain::Question& question = asked->question;
  if (!chain_->ask(i, right_[stores], question)) return nullptr;
  OpInPass& op = question.op;
  const bool last = is_last(i);
  op.got = last ? got_->data.view() : right_[stores][i].data.view();
  if (last) {
    op.right = want_[stores];
  } else {
    const auto* right = op.got.as<const double>();
    op.right = std::vector<double>(right, right + op.got.count());
  }
  op.few = few_of(i);
  op.other = [this, stores, &question, i](const Place& other) {
    return chain_->pick(question, other, right_[stores], chain_->ops()[i].rows);
  };
  asked->by = hypotheses_.of(op);
  return asked->by.get();
}

void Region::search(const std::vector<size_t>& ops, const std::function<void()>& before_each,
                    std::vector<Tried>& all) {
  OpHypotheses* const asked = hypotheses_of(ops.front(), OpChain::rounded);
  if (asked == nullptr) return;
  std::vector<Place> places;
  for (const size_t op : ops) places.push_back(chain_->ops()[op].place);
  for (const Guess& guess : asked->guesses()) {
    before_each();
    if (is_far({ops, guess})) continue;
    const std::optional<Fit> found = fit({ops, guess});
    if (found && found->explains())
      all.push_back({{ops, guess}, places, asked->says(guess), *found});
  }
}

std::vector<RegionInPass::Tried> Region::search(const std::function<void()>& before_each) {
  std::vector<Tried> all;
  for (size_t i = 0; i < chain_->ops().size(); ++i) search({i}, before_each, all);
  if (!all.empty()) return all;
  for (const std::vector<size_t>& ops : siblings()) search(ops, before_each, all);
  return all;
}

std::optional<Fit> Region::fit(const RegionGuess& guess) {
  std::optional<Fit> best;
  for (const Stores stores : {OpChain::rounded, OpChain::unrounded}) {
    std::vector<Numbers> numbers;
    for (const size_t op : guess.ops) {
      OpHypotheses* const asked = hypotheses_of(op, stores);
      if (asked == nullptr) return {};
      numbers.push_back(asked->evaluate(guess.guess));
      if (numbers.back().empty()) return {};
    }
    std::optional<Fit> fit;
    if (is_last(guess.ops.back())) {
      const Numbers& own = numbers.back();
      fit = fit_of_numbers({own.begin(), own.size()}, stores);
    } else {
      const std::vector<double> made = carried(*chain_, guess.ops, numbers, stores);
      if (made.empty()) return {};
      fit = fit_of_numbers(made, stores);
    }
    if (!best || fit->squares < best->squares) best = fit;
    if (best->explains()) break;
  }
  return best;
}

}  // namespace

std::unique_ptr<RegionInPass> RegionInPass::of(const Pass& pass, const Place& place,
                                               const std::vector<Place>& hidden,
                                               const std::set<int32_t>& wrong,
                                               const Manifest& manifest, const Judge& judge,
                                               Oracle& oracle, Hypotheses& hypotheses) {
  auto region = std::make_unique<Region>(pass, manifest, judge, oracle, hypotheses);
  if (!region->make(place, hidden, wrong)) return nullptr;
  return region;
}

}  // namespace lockstep
