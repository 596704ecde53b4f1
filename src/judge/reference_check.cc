// Both sides are the reference's own, so no number of the engine decides. Only the last row of a
// tensor is asked, and the places rotate from pass to pass, i modulo 16.
#include "src/judge/reference_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/judge/ledger.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

constexpr size_t kInTurn = 16;
// Both compute in fp64: sums of thousands of products in other orders are some 1e-13 of their size
// apart, and an exponential of a score of 100 is 1e-14 more.
constexpr double kApart = 1e-9;

KeysValues split(const RecordedTensor& kv, Tensor& k, Tensor& v) {
  const Shape half{kv.shape[0], kv.shape[2], kv.shape[3]};
  k = Tensor(half, kv.dtype);
  v = Tensor(half, kv.dtype);
  const int64_t bytes = half[1] * half[2] * size_of(kv.dtype);
  const char* from = kv.data.as<const char>();
  for (int64_t i = 0; i < half[0]; ++i) {
    std::copy_n(from + 2 * i * bytes, bytes, k.as<char>() + i * bytes);
    std::copy_n(from + (2 * i + 1) * bytes, bytes, v.as<char>() + i * bytes);
  }
  return {k, v};
}

double largest(std::span<const double> values) {
  double most = 0;
  for (const double x : values) most = std::max(most, std::fabs(x));
  return most;
}

}  // namespace

ReferenceCheck::ReferenceCheck(Oracle& oracle, const Graph& graph, DType dtype)
    : oracle_(oracle),
      graph_(graph),
      dtype_(dtype),
      thread_(oracle.asked_by_several() ? std::make_unique<Background>() : nullptr) {
  for (const Place& place : graph.places())
    if (!place.point->is_cache() && !row_of(place.point->op).makes_indices)
      places_.push_back(place);
}

void ReferenceCheck::begin_pass() {
  due_.clear();
  next_ = 0;
  cached_layers_.clear();
  for (size_t i = 0; i < places_.size(); ++i) {
    if (passes_ > 0 && i % kInTurn != passes_ % kInTurn) continue;
    due_.push_back(i);
    if (places_[i].point->op == OpKind::attention) cached_layers_.insert(places_[i].layer);
  }
  ++passes_;
}

void ReferenceCheck::check(const ModelPass& exact, int before) {
  wait();
  auto questions = std::make_shared<std::vector<std::unique_ptr<const Question>>>();
  for (; next_ < due_.size(); ++next_) {
    const Place& place = places_[due_[next_]];
    if (graph_.index_of(place) >= before) break;
    if (!suspicion_.empty()) continue;
    if (auto question = question_of(place, exact)) questions->push_back(std::move(question));
  }
  const auto ask_all = [this, questions] {
    for (const auto& question : *questions)
      if (suspicion_.empty()) ask(*question);
  };
  if (!thread_) return ask_all();
  thread_->begin(ask_all);
}

void ReferenceCheck::wait() {
  if (thread_) thread_->wait();
}

std::unique_ptr<ReferenceCheck::Question> ReferenceCheck::question_of(
    const Place& place, const ModelPass& model) const {
  const Pass& exact = model.pass();
  const RecordedTensor* all = exact.find(*place.point, place.layer);
  if (!all || all->rows.empty()) return nullptr;
  auto question = std::make_unique<Question>();
  Row& row = question->row = all->rows.back();
  question->made = model.with_rows(place, {&row, 1});
  if (question->made.data.view().empty()) return nullptr;
  OracleCall& call = question->call;
  call = {.place = place, .dtype = dtype_, .rows = {&row, 1}};
  const auto fed = std::ranges::find(exact.info.rows, row, &PassRow::row);
  if (fed == exact.info.rows.end()) return nullptr;
  question->token = fed->token;
  call.tokens = {&question->token, 1};
  int64_t& length = question->length;
  for (const PassRow& r : exact.info.rows)
    if (r.row.request == row.request) length = std::max<int64_t>(length, r.row.position + 1);
  call.lengths = {&length, 1};
  std::vector<RecordedTensor>& brought = question->brought;
  for (const Place& input : graph_.inputs_of(place)) {
    if (input.point->op == OpKind::angles) continue;  // by its own recipe, as the model
    if (input.point->is_of_shares()) continue;        // which no model attends in
    const RecordedTensor* tensor = nullptr;
    for (const RecordedTensor& kept : exact.tensors)
      if (kept.point && Place{kept.point, kept.layer} == input &&
          std::ranges::count(kept.rows, row) > 0)
        tensor = &kept;
    if (!tensor) return nullptr;
    if (input.point->is_cache()) {
      if (oracle_.on_device()) call.held_keys_values = model.held_rows(input, tensor->rows);
      const bool is_here = !tensor->data.view().empty();
      if (!call.held_keys_values.tensor)
        call.keys_values = split(is_here ? *tensor : model.with_rows(input, tensor->rows),
                                 question->k, question->v);
    } else {
      brought.push_back(model.with_rows(input, {&row, 1}));
      if (brought.back().data.view().empty()) return nullptr;
    }
  }
  for (const RecordedTensor& input : brought)
    question->picked.emplace_back(&input, std::span(&row, 1));
  for (const SelectedRows& input : question->picked) call.inputs.push_back(input.view());
  return question;
}

void ReferenceCheck::ask(const Question& question) {
  const OracleCall& call = question.call;
  const RecordedTensor& made = question.made;
  const Row& row = question.row;
  const Exact want = oracle_.evaluate(call);
  const SelectedRows one(&made, {&row, 1});
  std::vector<double> got(one.view().count());
  widen(one.view(), 0, got);
  ++checked_;
  // Under fp64 but for the tables, which a model in fp32 and the one in fp64 both show in fp32.
  const double allowed =
      kApart * largest(want.want) + (made.dtype == DType::f32 ? 0x1p-23 * largest(want.want) : 0);
  double apart = want.want.size() == got.size() ? 0 : std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < got.size() && i < want.want.size(); ++i) {
    // Inf and NaN are as wanted in both.
    if (!std::isfinite(got[i]) && !std::isfinite(want.want[i])) continue;
    const double difference = std::fabs(got[i] - want.want[i]);
    if (!within(difference, apart)) apart = difference;
  }
  if (within(apart, allowed)) return;
  suspicion_ = fmt::format(
      "at {}, request {} position {}, its fp64 model and its oracle are {:.3g} apart on the same "
      "inputs, of results of at most {:.3g}",
      text_of(call.place), row.request, row.position, apart, largest(want.want));
}

}  // namespace lockstep
