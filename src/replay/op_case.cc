// A case is a pass of one op: its rows, its inputs, and its result, stored or computed. Judging it
// asks the oracle for the exact numbers and the budget of every element, without models beside it,
// contexts or limits of a run: the question is which elements of these inputs are wrong.
#include "src/replay/op_case.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "kernels/base/check.h"
#include "src/judge/budget.h"
#include "src/judge/ledger.h"
#include "src/replay/case_outputs.h"

namespace lockstep {
namespace {

// K and V of a request as one tensor of attn.kv.
RecordedTensor joined(const RecordedTensor& kv, const KeysValues& read) {
  RecordedTensor whole = kv;
  const int64_t length = read.k.rows();
  const size_t bytes = read.k.row_size() * size_of(read.k.dtype);
  whole.row_hashes.clear();
  whole.shape = {length, 2, read.k.shape[1], read.k.shape[2]};
  whole.data = Tensor(whole.shape, read.k.dtype);
  char* to = whole.data.as<char>();
  for (size_t p = 0; p < static_cast<size_t>(length); ++p)
    for (const TensorView* half : {&read.k, &read.v})
      to = std::copy_n(half->as<const char>() + p * bytes, bytes, to);
  return whole;
}

// Tokens of each row's request after the pass.
std::vector<int64_t> lengths_of(const Pass& pass, const std::vector<Row>& rows) {
  std::vector<int64_t> lengths;
  for (const Row& row : rows) {
    int64_t length = 0;
    for (const PassRow& fed : pass.info.rows)
      if (fed.row.request == row.request) length = std::max<int64_t>(length, fed.row.position + 1);
    lengths.push_back(length);
  }
  return lengths;
}

// Caches of the requests of a pass, all 0.
std::vector<RecordedTensor> blank_caches(const Pass& pass, const Place& place,
                                         const Shape& position, DType dtype) {
  std::map<int32_t, int64_t> lengths;
  for (const PassRow& row : pass.info.rows) {
    int64_t& length = lengths[row.row.request];
    length = std::max<int64_t>(length, row.row.position + 1);
  }
  std::vector<RecordedTensor> all;
  for (const auto& [request, length] : lengths) {
    RecordedTensor& kv = all.emplace_back(
        RecordedTensor{.point = place.point, .layer = place.layer, .dtype = dtype});
    kv.shape = {length, 2, position[0], position[1]};
    kv.data = Tensor(kv.shape, dtype);
    std::memset(kv.data.as<char>(), 0, static_cast<size_t>(kv.data.view().bytes()));
    for (int32_t p = 0; p < length; ++p) kv.rows.push_back({request, p});
  }
  return all;
}

// Asks the oracle for rows of a single op, of attention of one request, and adds what it says.
class Asking {
 public:
  Asking(const CaseJudge& judge, const Pass& op_case) : judge_(judge), case_(op_case) {}

  void ask(const std::vector<Row>& rows, DType dtype, CaseElements& elements);

 private:
  const CaseJudge& judge_;
  const Pass& case_;
};

void Asking::ask(const std::vector<Row>& rows, DType dtype, CaseElements& elements) {
  const Place& place = judge_.call.named;
  OracleCall call{
      .place = place, .dtype = judge_.manifest.dtype, .contract = judge_.contract_at(place)};
  const std::vector<int64_t> lengths = lengths_of(case_, rows);
  std::vector<int32_t> tokens;
  for (const Row& row : rows)
    tokens.push_back(std::ranges::find(case_.info.rows, row, &PassRow::row)->token);
  std::deque<SelectedRows> picked;
  CacheRead cache;
  const KvHistory nothing{/*keep_bytes=*/false};
  for (const Place& input : judge_.call.reads) {
    const RecordedTensor* tensor = case_.find(*input.point, input.layer, rows.front().request);
    if (input.point->is_cache()) {
      cache = CacheRead(tensor, nothing);
      check(cache.trouble().empty(), "{}", cache.trouble());
      continue;
    }
    const TensorView view = picked.emplace_back(tensor, rows).view();
    if (view.empty() && input.point->op == OpKind::angles) continue;
    call.inputs.push_back(view);
  }
  call.keys_values = cache.keys_values();
  call.rows = rows, call.tokens = tokens, call.lengths = lengths;
  const Exact exact = judge_.oracle.evaluate(call);
  const Budget budget = budget_of(place.point->op, exact, dtype);
  elements.want.insert(elements.want.end(), exact.want.begin(), exact.want.end());
  elements.limit.insert(elements.limit.end(), budget.limit.begin(), budget.limit.end());
}

// Rows of other ops go to the oracle together, as it reads the op's weights once a call.
void put_exact(const CaseJudge& judge, const Pass& op_case, DType dtype, CaseElements& elements) {
  std::vector<Row> some;
  for (size_t i = 0; i < elements.rows.size(); ++i) {
    some.push_back(elements.rows[i]);
    const bool last = i + 1 == elements.rows.size();
    const bool apart = judge.call.named.point->op == OpKind::attention && !last &&
                       elements.rows[i + 1].request != elements.rows[i].request;
    if (!last && !apart) continue;
    Asking(judge, op_case).ask(some, dtype, elements);
    some.clear();
  }
}

// Chosen indices are exact: largest first, of equal ones the first (kernels/routing.h, argmax.h).
void put_choices(const CaseJudge& judge, const Pass& op_case, CaseElements& elements) {
  const Place& input = judge.call.reads.at(0);
  const SelectedRows picked(op_case.find(*input.point, input.layer), elements.rows);
  const TensorView& logits = picked.view();
  const int64_t width = logits.row_size();
  for (int64_t row = 0; row < logits.rows(); ++row) {
    std::vector<int64_t> order(static_cast<size_t>(width));
    for (int64_t i = 0; i < width; ++i) order[i] = i;
    // NaN counts as the largest, as in the ops themselves.
    const auto value = [&](int64_t i) {
      const double x = value_at(logits, row * width + i);
      return std::isnan(x) ? std::numeric_limits<double>::infinity() : x;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return value(a) > value(b); });
    for (int64_t k = 0; k < elements.outputs[0].row_size; ++k) {
      elements.want.push_back(static_cast<double>(order[k]));
      elements.limit.push_back(0);
    }
  }
}

// The elements of a single op that stores one tensor.
void put_single(const CaseJudge& judge, const Pass& op_case, const TensorView& got,
                CaseElements& elements) {
  CaseElements::Output& out = elements.outputs.emplace_back();
  out.argument = "out";
  out.dtype = got.dtype;
  out.row_size = got.row_size();
  for (int64_t r = 0; r < got.rows(); ++r) out.at.push_back(r * out.row_size);
  for (int64_t i = 0; i < got.count(); ++i) elements.got.push_back(value_at(got, i));
  if (row_of(judge.call.named.point->op).makes_indices)
    put_choices(judge, op_case, elements);
  else
    put_exact(judge, op_case, got.dtype, elements);
  check(elements.want.size() == elements.got.size(),
        "{} was made with another shape than the exact result has", text_of(judge.call.named));
}

}  // namespace

const CaseElements::Output& CaseElements::output_of(size_t element) const {
  const auto past = std::ranges::upper_bound(outputs, element, {}, &Output::first);
  return *std::prev(past);
}

const Row& CaseElements::row_of(size_t element) const {
  const Output& out = output_of(element);
  return rows.at((element - out.first) / static_cast<size_t>(out.row_size));
}

int64_t CaseElements::column_of(size_t element) const {
  const Output& out = output_of(element);
  return static_cast<int64_t>(element - out.first) % out.row_size;
}

// The same number is right whatever the budget, and NaN where NaN is exact, and an Infinity that
// the exact result is too, once it is rounded.
bool CaseElements::is_wrong(size_t i) const {
  if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) return false;
  if (std::isinf(got[i]) && got[i] == round_to(want[i], output_of(i).dtype)) return false;
  return !(std::fabs(got[i] - want[i]) <= limit[i]);
}

double CaseElements::budgets(size_t i) const {
  const double away = std::fabs(got[i] - want[i]);
  return std::isfinite(away) ? away / limit[i] : std::numeric_limits<double>::infinity();
}

std::vector<size_t> CaseElements::wrong() const {
  std::vector<size_t> all;
  for (size_t i = 0; i < got.size(); ++i)
    if (is_wrong(i)) all.push_back(i);
  return all;
}

size_t CaseElements::worst() const {
  const std::vector<size_t> all = wrong();
  check(!all.empty(), "no element is wrong by itself, so that none is the worst");
  return *std::ranges::max_element(all, {}, [this](size_t i) { return budgets(i); });
}

Pass case_of(const Pass& pass, const CallPlaces& call, const KvHistory& history,
             const Shape& position, DType dtype, std::string& lacking) {
  Pass made{.info = pass.info};
  for (const RecordedTensor& tensor : pass.tensors) {
    const Place here{tensor.point, tensor.layer};
    const bool read = std::ranges::count(call.reads, here) > 0;
    if (!read && (std::ranges::count(call.outputs, here) == 0 || here.point->is_cache())) continue;
    if (!here.point->is_cache()) {
      made.tensors.push_back(tensor);
      continue;
    }
    const CacheRead cache(&tensor, history);
    if (!cache.trouble().empty()) {
      lacking = cache.trouble();
      return {};
    }
    made.tensors.push_back(joined(tensor, cache.keys_values()));
  }
  for (const Place& place : call.outputs)
    if (place.point->is_cache())
      for (RecordedTensor& blank : blank_caches(pass, place, position, dtype))
        made.tensors.push_back(std::move(blank));
  return made;
}

CaseElements judged_case(const CaseJudge& judge, const Pass& op_case, bool stored) {
  const KvHistory nothing{/*keep_bytes=*/false};
  const OpInputs inputs(op_case, judge.call.named, judge.call.reads, nothing, judge.pool);
  check(inputs.lacking().empty(), "{}", inputs.lacking());
  CaseElements elements{.rows = inputs.rows(), .outputs = {}, .want = {}, .limit = {}, .got = {}};
  std::vector<RecordedTensor> made;
  if (!stored) made = judge.runner.run(judge.which, inputs, /*timed=*/false).tensors;
  for (const RecordedTensor& tensor : op_case.tensors)
    if (stored && std::ranges::count(judge.call.outputs, Place{tensor.point, tensor.layer}) > 0)
      made.push_back(tensor);
  if (!judge.call.fused.empty() || judge.call.named.point->is_cache()) {
    put_outputs(judge, op_case, inputs, made, elements);
    return elements;
  }
  const SelectedRows kept(made.empty() ? nullptr : &made[0], elements.rows);
  check(!kept.view().empty(), "the numbers of {} were not kept", text_of(judge.call.named));
  put_single(judge, op_case, kept.view(), elements);
  return elements;
}

}  // namespace lockstep
