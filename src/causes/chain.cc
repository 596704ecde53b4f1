// The chain of a region is computed op by op by the oracle, with each hidden result rounded as an
// engine stores it, or with none rounded, as a fused kernel has it.
#include "src/causes/chain.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "src/judge/budget.h"
#include "src/judge/contracts.h"
#include "src/judge/pass_view.h"
#include "src/judge/shares.h"
#include "traces/run_facts.h"

namespace lockstep {

OpChain::OpChain(const Pass& pass, const Manifest& manifest, const Judge& judge, Oracle& oracle,
                 DType recorded)
    : pass_(pass),
      graph_(without_merges(manifest.graph)),
      judge_(judge),
      oracle_(oracle),
      dtype_(manifest.dtype),
      recorded_(recorded),
      page_size_(run_facts_of(manifest).page_size) {}

bool OpChain::add(const Place& place, std::span<const Row> rows) {
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

std::optional<size_t> OpChain::op_of(const Place& place) const {
  const auto found = std::ranges::find(ops_, place, &Op::place);
  if (found == ops_.end()) return {};
  return static_cast<size_t>(found - ops_.begin());
}

// A norm of a sum that is not rounded reads what is added.
std::vector<Place> OpChain::inputs_of(const Op& op) const {
  std::vector<Place> inputs = graph_.inputs_of(op.place);
  if (is_of_sum(op.contract) && !inputs.empty() && inputs[0].point->op == OpKind::add)
    return graph_.inputs_of(inputs[0]);
  return inputs;
}

TensorView OpChain::pick(Question& question, const Place& place, const Values& values,
                         std::span<const Row> rows) const {
  const auto hidden = op_of(place);
  const RecordedTensor* tensor = hidden ? &values[*hidden] : pass_.find(*place.point, place.layer);
  return question.picked.emplace_back(tensor, rows).view();
}

bool OpChain::ask(size_t i, const Values& values, Question& question) const {
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
bool OpChain::ask_caches(const Op& op, const Place& cache, const Values& values,
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

void OpChain::add_rows(size_t i, const OracleCall& call, Answer& answer) {
  const Exact exact = oracle_.evaluate(call);
  answer.want.insert(answer.want.end(), exact.want.begin(), exact.want.end());
  std::vector<int64_t> extents(exact.shape.extents().begin(), exact.shape.extents().end());
  extents[0] = std::ssize(ops_[i].rows);
  answer.shape = Shape(extents);
  if (!call.for_budget) return;
  const bool last = i + 1 == ops_.size();
  const DType stored = last ? recorded_ : ops_[i].place.point->dtype_in(dtype_);
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
OpChain::Answer OpChain::answer_of(size_t i, const Question& question) {
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
void OpChain::put(size_t i, std::span<const double> numbers, const Shape& row_shape, Stores stores,
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
bool OpChain::run(size_t first, std::vector<bool> changed, const std::vector<bool>& given,
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

// Whether the one is made of the other, in however many steps.
bool OpChain::reads(size_t op, size_t before) const {
  return std::ranges::any_of(ops_[op].reads, [&](size_t read) {
    return read == before || (read > before && reads(read, before));
  });
}

// An input is needed in the rows of its reader; keys and values in all, as every later row attends
// to them.
OpChain OpChain::with_few(std::span<const Row> last) const {
  OpChain few = *this;
  std::vector<std::set<std::pair<int32_t, int32_t>>> needed(ops_.size());
  std::vector<bool> all(ops_.size());
  for (const Row& row : last) needed.back().emplace(row.request, row.position);
  for (size_t i = ops_.size(); i-- > 0;) {
    for (const Place& input : inputs_of(ops_[i])) {
      if (input.point->is_cache()) {
        for (const Place& from : graph_.inputs_of(input))
          if (const auto before = op_of(from)) all[*before] = true;
      } else if (const auto before = op_of(input)) {
        all[*before] = all[*before] || all[i];
        needed[*before].insert(needed[i].begin(), needed[i].end());
      }
    }
    if (all[i]) continue;
    Op& op = few.ops_[i];
    op = Op{.place = op.place, .contract = op.contract, .reads = op.reads};
    for (size_t r = 0; r < ops_[i].rows.size(); ++r) {
      const Row& row = ops_[i].rows[r];
      if (!needed[i].contains({row.request, row.position})) continue;
      op.rows.push_back(row);
      op.pass_rows.push_back(ops_[i].pass_rows[r]);
      op.tokens.push_back(ops_[i].tokens[r]);
      op.lengths.push_back(ops_[i].lengths[r]);
    }
  }
  return few;
}

}  // namespace lockstep
