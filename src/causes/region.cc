// The chain of a region is computed op by op by the oracle, with each hidden result rounded as an
// engine stores it, and once more with none rounded, as a fused kernel has it: where the engine did
// the one or the other, the right chain ends within one rounding of what is recorded, and so does a
// hypothesis that is the cause. That is asked of one, for a region's budget, which holds all that
// hidden ops may round, would let many pass. Beside the rounding it has room for what the fp32
// arithmetic of hidden ops comes to there: nothing in 16 bits, and hundreds of roundings in fp32.
#include "src/causes/region.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <utility>

#include "src/judge/budget.h"
#include "src/judge/cache_read.h"
#include "src/judge/carried.h"
#include "src/judge/contracts.h"
#include "src/judge/pass_view.h"
#include "src/judge/shares.h"
#include "traces/run_facts.h"

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

// The results of the ops of a region, hidden ones in fp64.
using Values = std::vector<RecordedTensor>;

class Chain final : public RegionInPass {
 public:
  Chain(const Pass& pass, const Manifest& manifest, const Judge& judge, Oracle& oracle,
        Hypotheses& hypotheses)
      : pass_(pass),
        graph_(without_merges(manifest.graph)),
        judge_(judge),
        oracle_(oracle),
        hypotheses_(hypotheses),
        dtype_(manifest.dtype),
        page_size_(run_facts_of(manifest).page_size) {}

  bool make(const Place& place, const std::vector<Place>& hidden, const std::set<int32_t>& wrong);
  std::vector<Tried> search(const std::function<void()>& before_each) override;
  std::optional<Fit> fit(const RegionGuess& guess) override;

 private:
  struct Op {
    Place place;
    RoundingContract contract = RoundingContract::fused;
    std::vector<Row> rows;
    std::vector<PassRow> pass_rows;
    std::vector<int32_t> tokens;
    std::vector<int64_t> lengths;
    std::vector<size_t> reads;  // ops of the region, caches looked through
  };
  // An op with what it reads, for the oracle and for hypotheses.
  struct Question {
    OpInPass op;
    std::deque<SelectedRows> picked;
    std::deque<CacheRead> caches;
    std::unique_ptr<OpHypotheses> asked;
  };
  struct Node {
    bool is_wrong = false;
    std::vector<size_t> rows;
  };
  enum Stores : uint8_t { rounded, unrounded };
  // The oracle's answer of all rows, and, where it was asked for them, its budgets B, and the
  // deviations of right fp32 kernels, whatever they store.
  struct Answer {
    bool wants_limit = false;
    std::vector<double> want, limit, deviation;
    Shape shape;
  };

  bool add_op(const Place& place, std::span<const Row> rows);
  std::optional<size_t> op_of(const Place& place) const;
  std::vector<Place> inputs_of(const Op& op) const;
  TensorView pick(Question& question, const Place& place, const Values& values,
                  std::span<const Row> rows) const;
  bool ask(size_t i, const Values& values, Question& question) const;
  bool ask_caches(const Op& op, const Place& cache, const Values& values, Question& question) const;
  void add_rows(size_t i, const OracleCall& call, Answer& answer);
  Answer answer_of(size_t i, const Question& question);
  bool add_noise();
  bool run(size_t first, std::vector<bool> changed, const std::vector<bool>& given, Values& values,
           Stores stores, Answer* last);
  void put(size_t i, std::span<const double> numbers, const Shape& row_shape, Stores stores,
           Values& values) const;
  Fit fit_of_numbers(std::span<const double> hypothesis, Stores stores) const;
  std::optional<Fit> fit_with(const std::vector<size_t>& ops, const std::vector<Numbers>& numbers,
                              Stores stores);
  bool reads(size_t op, size_t before) const;
  std::vector<std::vector<size_t>> siblings() const;
  void search(const std::vector<size_t>& ops, const std::function<void()>& before_each,
              std::vector<Tried>& all);
  OpHypotheses* hypotheses_of(size_t i, Stores stores);

  const Pass& pass_;
  Graph graph_;
  const Judge& judge_;
  Oracle& oracle_;
  Hypotheses& hypotheses_;
  DType dtype_;
  int64_t page_size_;
  std::vector<Op> ops_;  // the last is the recorded one
  std::array<Values, 2> right_;
  std::array<std::vector<double>, 2> want_, limit_;  // of the recorded place
  const RecordedTensor* got_ = nullptr;
  std::vector<double> stored_;
  std::vector<Node> nodes_;
  // Questions of the hypotheses, by op, of the stores that they are asked with.
  std::array<std::vector<std::unique_ptr<Question>>, 2> questions_;
};

bool Chain::add_op(const Place& place, std::span<const Row> rows) {
  Op op{.place = place, .contract = judge_.contract_at(place), .rows = {rows.begin(), rows.end()}};
  for (const Row& row : rows) {
    int64_t length = 0;
    for (const PassRow& fed : pass_.info.rows) {
      if (fed.row.request == row.request) length = std::max<int64_t>(length, fed.row.position + 1);
      if (fed.row == row) op.pass_rows.push_back(fed);
    }
    op.lengths.push_back(length);
  }
  if (op.pass_rows.size() != rows.size()) return false;
  for (const PassRow& fed : op.pass_rows) op.tokens.push_back(fed.token);
  for (const Place& input : inputs_of(op)) {
    std::vector<Place> read = {input};
    if (input.point->is_cache()) read = graph_.inputs_of(input);
    for (const Place& from : read)
      if (const auto before = op_of(from)) op.reads.push_back(*before);
  }
  ops_.push_back(std::move(op));
  return true;
}

std::optional<size_t> Chain::op_of(const Place& place) const {
  const auto found = std::ranges::find(ops_, place, &Op::place);
  if (found == ops_.end()) return {};
  return static_cast<size_t>(found - ops_.begin());
}

// A norm of a sum that is not rounded reads what is added.
std::vector<Place> Chain::inputs_of(const Op& op) const {
  std::vector<Place> inputs = graph_.inputs_of(op.place);
  if (is_of_sum(op.contract) && !inputs.empty() && inputs[0].point->op == OpKind::add)
    return graph_.inputs_of(inputs[0]);
  return inputs;
}

TensorView Chain::pick(Question& question, const Place& place, const Values& values,
                       std::span<const Row> rows) const {
  const auto hidden = op_of(place);
  const RecordedTensor* tensor = hidden ? &values[*hidden] : pass_.find(*place.point, place.layer);
  return question.picked.emplace_back(tensor, rows).view();
}

bool Chain::ask(size_t i, const Values& values, Question& question) const {
  const Op& op = ops_[i];
  OpInPass& asked = question.op;
  asked.call = {.place = op.place, .dtype = dtype_, .contract = op.contract};
  asked.call.rows = op.rows;
  asked.call.tokens = op.tokens;
  asked.call.lengths = op.lengths;
  asked.pass_rows = op.pass_rows;
  asked.page_size = page_size_;
  for (const RequestPages& pages : pass_.info.pages) asked.pages[pages.request] = pages;
  for (const Place& input : inputs_of(op)) {
    if (input.point->is_cache()) {
      if (!ask_caches(op, input, values, question)) return false;
      continue;
    }
    const TensorView view = pick(question, input, values, op.rows);
    if (view.empty() && input.point->op == OpKind::angles) continue;
    if (view.empty()) return false;
    asked.call.inputs.push_back(view);
  }
  return true;
}

// K and V that this pass computes are put together; all others must be recorded.
bool Chain::ask_caches(const Op& op, const Place& cache, const Values& values,
                       Question& question) const {
  const std::vector<Place> written = graph_.inputs_of(cache);
  for (size_t r = 0; r < op.rows.size(); ++r) {
    const int32_t request = op.rows[r].request;
    if (question.op.caches.contains(request)) continue;
    if (!op_of(cache) && pass_.find(*cache.point, cache.layer, request) != nullptr) {
      const CacheRead& read = question.caches.emplace_back(
          pass_.find(*cache.point, cache.layer, request), judge_.history());
      if (!read.trouble().empty()) return false;
      question.op.caches[request] = read.keys_values();
      continue;
    }
    std::vector<Row> all;
    for (int32_t p = 0; p < op.lengths[r]; ++p) all.push_back({request, p});
    const TensorView k = pick(question, written.at(0), values, all),
                     v = pick(question, written.at(1), values, all);
    if (k.empty() || v.empty()) return false;
    question.op.caches[request] = {k, v};
  }
  return true;
}

void Chain::add_rows(size_t i, const OracleCall& call, Answer& answer) {
  const Exact exact = oracle_.evaluate(call);
  answer.want.insert(answer.want.end(), exact.want.begin(), exact.want.end());
  std::vector<int64_t> extents(exact.shape.extents().begin(), exact.shape.extents().end());
  extents[0] = std::ssize(ops_[i].rows);
  answer.shape = Shape(extents);
  if (!call.for_budget) return;
  const bool last = i + 1 == ops_.size();
  const DType stored = last ? got_->dtype : ops_[i].place.point->dtype_in(dtype_);
  const Budget budget = budget_of(ops_[i].place.point->op, exact, stored);
  answer.limit.insert(answer.limit.end(), budget.limit.begin(), budget.limit.end());
  for (size_t e = 0; e < exact.want.size(); ++e) {
    const double spacing = ulp(exact.want[e], stored), in_fp32 = ulp(exact.want[e], DType::f32);
    const double all = std::min(budget.variance[e], budget.limit[e] * budget.limit[e]);
    const double inner = std::max(0.0, all - spacing * spacing / 12);
    answer.deviation.push_back(std::sqrt(inner + in_fp32 * in_fp32 / 12));
  }
}

// An attention is asked for a request at a time.
Chain::Answer Chain::answer_of(size_t i, const Question& question) {
  const Op& op = ops_[i];
  Answer answer;
  if (op.place.point->op != OpKind::attention) {
    add_rows(i, question.op.call, answer);
    return answer;
  }
  for (size_t first = 0, end = 0; first < op.rows.size(); first = end) {
    const int32_t request = op.rows[first].request;
    while (end < op.rows.size() && op.rows[end].request == request) ++end;
    OracleCall call = question.op.call;
    call.rows = call.rows.subspan(first, end - first);
    call.tokens = call.tokens.subspan(first, end - first);
    call.lengths = call.lengths.subspan(first, end - first);
    for (TensorView& input : call.inputs)
      input = input.slice(static_cast<int64_t>(first), static_cast<int64_t>(end - first));
    call.keys_values = question.op.caches.at(request);
    add_rows(i, call, answer);
  }
  return answer;
}

// Puts what an op made among the values.
void Chain::put(size_t i, std::span<const double> numbers, const Shape& row_shape, Stores stores,
                Values& values) const {
  const Op& op = ops_[i];
  std::vector<int64_t> extents = {std::ssize(op.rows)};
  extents.insert(extents.end(), row_shape.extents().begin(), row_shape.extents().end());
  RecordedTensor made{.point = op.place.point, .layer = op.place.layer, .dtype = DType::f64};
  made.rows = op.rows;
  made.shape = Shape(extents);
  made.data = Tensor(made.shape, DType::f64);
  const DType stored = op.place.point->dtype_in(dtype_);
  for (size_t e = 0; e < numbers.size(); ++e)
    made.data.as<double>()[e] = stores == rounded ? round_to(numbers[e], stored) : numbers[e];
  values[i] = std::move(made);
}

// Computes those from `first` on that are changed or read what is, but for those that are given.
// `last`: the recorded op's answer.
bool Chain::run(size_t first, std::vector<bool> changed, const std::vector<bool>& given,
                Values& values, Stores stores, Answer* last) {
  for (size_t i = first; i < ops_.size(); ++i) {
    for (const size_t read : ops_[i].reads) changed[i] = changed[i] || changed[read];
    if (!changed[i] || given[i]) continue;
    Question question;
    if (!ask(i, values, question)) return false;
    question.op.call.for_budget = last->wants_limit && i + 1 == ops_.size();
    Answer answer = answer_of(i, question);
    if (answer.want.empty()) return false;
    if (i + 1 == ops_.size())
      *last = std::move(answer);
    else
      put(i, answer.want, Shape(answer.shape.extents().subspan(1)), stores, values);
  }
  return true;
}

// Right kernels of the hidden ops differ by their fp32 arithmetic. Errors of that size, drawn at
// random, are sent through the chain, and the budgets get room for what comes of them.
bool Chain::add_noise() {
  const Values& right = right_[unrounded];
  std::vector<std::vector<float>> errors;
  for (size_t i = 0; i + 1 < ops_.size(); ++i) {
    Question question;
    if (!ask(i, right, question)) return false;
    const Answer answer = answer_of(i, question);
    errors.push_back(samples_of(answer.deviation, right[i].data.view().row_size(), i));
  }
  std::vector<double> squares(want_[unrounded].size());
  for (int64_t s = 0; s < kErrorSamples; ++s) {
    Values values = right;
    for (size_t i = 0; i < ops_.size(); ++i) {
      Question question;
      if (!ask(i, values, question)) return false;
      question.op.call.for_budget = false;
      Answer answer = answer_of(i, question);
      const bool last = i + 1 == ops_.size();
      const size_t size = last ? 1 : right[i].data.view().row_size();
      for (size_t e = 0; e < answer.want.size(); ++e)
        if (last)
          squares[e] += std::pow(answer.want[e] - want_[unrounded][e], 2);
        else
          answer.want[e] += errors[i][(e / size * kErrorSamples + s) * size + e % size];
      if (!last) put(i, answer.want, Shape(answer.shape.extents().subspan(1)), unrounded, values);
    }
  }
  for (std::vector<double>& limit : limit_)
    for (size_t e = 0; e < squares.size(); ++e)
      if (std::isfinite(squares[e]))
        limit[e] += kNoiseDeviations * std::sqrt(squares[e] / kErrorSamples);
  return true;
}

bool Chain::make(const Place& place, const std::vector<Place>& hidden,
                 const std::set<int32_t>& wrong) {
  got_ = pass_.find(*place.point, place.layer);
  if (got_ == nullptr || got_->data.view().empty() || hidden.size() > kMostOps ||
      std::ssize(pass_.info.rows) > kMostRows || place.point->is_cache() ||
      row_of(place.point->op).makes_indices)
    return false;
  std::vector<Row> rows;
  for (const PassRow& fed : pass_.info.rows) rows.push_back(fed.row);
  for (const Place& op : hidden) {
    if (op.point->is_cache()) continue;
    if (row_of(op.point->op).makes_indices || !add_op(op, rows)) return false;
  }
  if (!add_op(place, got_->rows)) return false;
  for (const Stores stores : {rounded, unrounded}) {
    Values& values = right_[stores];
    values.resize(ops_.size());
    questions_[stores].resize(ops_.size());
    Answer last{.wants_limit = true};
    const std::vector<bool> all(ops_.size(), true), none(ops_.size());
    if (!run(0, all, none, values, stores, &last)) return false;
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
  return true;
}

Fit Chain::fit_of_numbers(std::span<const double> hypothesis, Stores stores) const {
  const auto size = static_cast<size_t>(got_->data.view().row_size());
  Fit fit;
  for (const Node& node : nodes_) {
    std::vector<double> got, want, limit, numbers;
    for (const size_t r : node.rows)
      for (size_t i = r * size; i < (r + 1) * size; ++i) {
        got.push_back(stored_[i]);
        want.push_back(want_[stores][i]);
        limit.push_back(limit_[stores][i]);
        numbers.push_back(hypothesis[i]);
      }
    const WrongNode held{got_->dtype, got, want, limit};
    fit.add(node.is_wrong ? fit_in_region(held, numbers) : fit_of_right(held, numbers));
  }
  return fit;
}

// The numbers are what a hypothesis makes of each of the ops, none of which reads another.
std::optional<Fit> Chain::fit_with(const std::vector<size_t>& ops,
                                   const std::vector<Numbers>& numbers, Stores stores) {
  const auto span_of = [](const Numbers& n) { return std::span(n.begin(), n.size()); };
  if (ops.back() + 1 == ops_.size()) return fit_of_numbers(span_of(numbers.back()), stores);
  Values values = right_[stores];
  std::vector<bool> changed(ops_.size()), given(ops_.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const size_t op = ops[i];
    put(op, span_of(numbers[i]), Shape(values[op].shape.extents().subspan(1)), stores, values);
    changed[op] = given[op] = true;
  }
  Answer last;
  if (!run(ops.front() + 1, changed, given, values, stores, &last) || last.want.empty()) return {};
  return fit_of_numbers(last.want, stores);
}

// Whether the one is made of the other, in however many steps.
bool Chain::reads(size_t op, size_t before) const {
  return std::ranges::any_of(ops_[op].reads, [&](size_t read) {
    return read == before || (read > before && reads(read, before));
  });
}

// Ops of one kind, none of which is made of another: the projections of a layer, the norms or the
// rotations of q and k. All of them, and each two.
std::vector<std::vector<size_t>> Chain::siblings() const {
  std::vector<std::vector<size_t>> all;
  for (size_t i = 0; i + 1 < ops_.size(); ++i) {
    std::vector<size_t> group = {i};
    for (size_t j = i + 1; j + 1 < ops_.size(); ++j)
      if (ops_[j].place.point->op == ops_[i].place.point->op &&
          std::ranges::none_of(group, [&](size_t before) { return reads(j, before); }))
        group.push_back(j);
    if (group.size() > 2) all.push_back(group);
    for (size_t j = 1; j < group.size(); ++j) all.push_back({i, group[j]});
  }
  return all;
}

// Hypotheses that look for a number in what was stored find the right one in a hidden op.
OpHypotheses* Chain::hypotheses_of(size_t i, Stores stores) {
  std::unique_ptr<Question>& question = questions_[stores][i];
  if (question) return question->asked.get();
  question = std::make_unique<Question>();
  if (!ask(i, right_[stores], *question)) return nullptr;
  OpInPass& op = question->op;
  const bool last = i + 1 == ops_.size();
  op.got = last ? got_->data.view() : right_[stores][i].data.view();
  if (last) {
    op.right = want_[stores];
  } else {
    const auto* right = op.got.as<const double>();
    op.right = std::vector<double>(right, right + op.got.count());
  }
  op.other = [this, stores, own = question.get(), i](const Place& other) {
    return pick(*own, other, right_[stores], ops_[i].rows);
  };
  question->asked = hypotheses_.of(op);
  return question->asked.get();
}

void Chain::search(const std::vector<size_t>& ops, const std::function<void()>& before_each,
                   std::vector<Tried>& all) {
  OpHypotheses* const asked = hypotheses_of(ops.front(), rounded);
  if (asked == nullptr) return;
  std::vector<Place> places;
  for (const size_t op : ops) places.push_back(ops_[op].place);
  for (const Guess& guess : asked->guesses()) {
    before_each();
    const std::optional<Fit> found = fit({ops, guess});
    if (found && found->explains())
      all.push_back({{ops, guess}, places, asked->says(guess), *found});
  }
}

std::vector<RegionInPass::Tried> Chain::search(const std::function<void()>& before_each) {
  std::vector<Tried> all;
  for (size_t i = 0; i < ops_.size(); ++i) search({i}, before_each, all);
  if (!all.empty()) return all;
  for (const std::vector<size_t>& ops : siblings()) search(ops, before_each, all);
  return all;
}

std::optional<Fit> Chain::fit(const RegionGuess& guess) {
  std::optional<Fit> best;
  for (const Stores stores : {rounded, unrounded}) {
    std::vector<Numbers> numbers;
    for (const size_t op : guess.ops) {
      OpHypotheses* const asked = hypotheses_of(op, stores);
      if (asked == nullptr) return {};
      numbers.push_back(asked->evaluate(guess.guess));
      if (numbers.back().empty()) return {};
    }
    const auto fit = fit_with(guess.ops, numbers, stores);
    if (!fit) return {};
    if (!best || fit->squares < best->squares) best = fit;
    // Whether hidden results were stored makes no cause of what is none.
    if (best->explains() || best->squares > kFar * best->right_squares) break;
  }
  return best;
}

}  // namespace

std::unique_ptr<RegionInPass> RegionInPass::of(const Pass& pass, const Place& place,
                                               const std::vector<Place>& hidden,
                                               const std::set<int32_t>& wrong,
                                               const Manifest& manifest, const Judge& judge,
                                               Oracle& oracle, Hypotheses& hypotheses) {
  auto chain = std::make_unique<Chain>(pass, manifest, judge, oracle, hypotheses);
  if (!chain->make(place, hidden, wrong)) return nullptr;
  return chain;
}

}  // namespace lockstep
