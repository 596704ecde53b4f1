// The outputs of a fused op are judged as those of a run are, by the judge of single places: each
// by what its own piece reads, and by the region of what nobody stored. A cache is looked into at
// the slots of the rows: K as what RoPE makes, where that is of the call, and else as what was
// given.
#include "src/replay/case_outputs.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/base/check.h"
#include "src/judge/ledger.h"
#include "src/judge/op_judge.h"
#include "src/judge/pass_view.h"

namespace lockstep {
namespace {

// The numbers that a row of a place should have, and how far off they may be.
struct RightRow {
  std::vector<double> want, limit;
};
using RightRows = std::map<std::pair<int32_t, int32_t>, RightRow>;  // by request and position
std::pair<int32_t, int32_t> key_of(const Row& row) { return {row.request, row.position}; }

std::vector<double> numbers_of(const TensorView& tensor, int64_t first, int64_t count) {
  std::vector<double> all;
  for (int64_t i = first; i < first + count; ++i) all.push_back(value_at(tensor, i));
  return all;
}

class Outputs {
 public:
  Outputs(const CaseJudge& judge, const Pass& op_case, const OpInputs& inputs,
          const std::vector<RecordedTensor>& made, CaseElements& elements)
      : judge_(judge), inputs_(inputs), elements_(elements) {
    seen_.info = op_case.info;
    std::erase_if(seen_.info.rows, [&](const PassRow& row) {
      return std::ranges::count(elements.rows, row.row) == 0;
    });
    seen_.info.logit_rows.clear();
    for (const RecordedTensor& tensor : op_case.tensors)
      if (std::ranges::count(judge.call.reads, Place{tensor.point, tensor.layer}) > 0)
        seen_.tensors.push_back(tensor);
    for (const RecordedTensor& tensor : made) seen_.tensors.push_back(tensor);
  }

  void put();

 private:
  bool is_stored(const Place& place) const {
    return std::ranges::count(judge_.call.outputs, place) > 0;
  }
  std::map<int, RightRows> judged();
  RightRows given(const Place& place) const;
  void put_plain(const Place& place, const RightRows& right);
  void put_half(const Place& cache, int half, const RightRows& right);
  void add_row(const std::vector<double>& got, const RightRow& right);
  bool is_wrong_from(size_t first) const;

  const CaseJudge& judge_;
  const OpInputs& inputs_;
  CaseElements& elements_;
  Pass seen_;  // what is read, and what was made
};

// By order of the point.
std::map<int, RightRows> Outputs::judged() {
  std::map<int, RightRows> all;
  std::mutex one;
  const auto hides = [this](const Place& place) {
    return std::ranges::count(judge_.call.hidden, place) > 0;
  };
  OpJudge op_judge(judge_.oracle, judge_.manifest.graph,
                   {.dtype = judge_.manifest.dtype,
                    .page_size = judge_.pool.page_size,
                    .threads = 1,
                    .recorded = [&](const Place& place) { return !hides(place); },
                    .contracts = judge_.contracts,
                    .limits = {},
                    .show =
                        [&](const Place& place, const Row& row, std::span<const double> want,
                            std::span<const double> limit) {
                          const std::scoped_lock lock(one);
                          all[place.point->order()][key_of(row)] = {{want.begin(), want.end()},
                                                                    {limit.begin(), limit.end()}};
                        }});
  const Selection everything;
  const PassView view(seen_, everything);
  const KvHistory nothing(/*keep_bytes=*/false);
  op_judge.begin_pass(view);
  for (const Place& place : judge_.manifest.graph.places()) {
    if (!hides(place) && !is_stored(place)) continue;
    op_judge.reach(place);
    if (is_stored(place) && !place.point->is_cache())
      op_judge.judge(place, judge_.manifest.graph.inputs_of(place),
                     {.seen = view, .history = nothing});
  }
  return all;
}

// A tensor that is copied.
RightRows Outputs::given(const Place& place) const {
  const RecordedTensor* tensor = seen_.find(*place.point, place.layer);
  RightRows all;
  const int64_t size = tensor->data.view().row_size();
  for (size_t r = 0; r < tensor->rows.size(); ++r)
    all[key_of(tensor->rows[r])] = {numbers_of(tensor->data, static_cast<int64_t>(r) * size, size),
                                    std::vector<double>(static_cast<size_t>(size), 0)};
  return all;
}

void Outputs::add_row(const std::vector<double>& got, const RightRow& right) {
  check(got.size() == right.want.size(), "{} was made with another shape than the exact result has",
        text_of(judge_.call.named));
  elements_.got.insert(elements_.got.end(), got.begin(), got.end());
  elements_.want.insert(elements_.want.end(), right.want.begin(), right.want.end());
  elements_.limit.insert(elements_.limit.end(), right.limit.begin(), right.limit.end());
}

void Outputs::put_plain(const Place& place, const RightRows& right) {
  const SelectedRows kept(seen_.find(*place.point, place.layer), elements_.rows);
  check(!kept.view().empty(), "the numbers of {} were not kept", text_of(place));
  CaseElements::Output& out = elements_.outputs.emplace_back();
  out.argument = argument_of(judge_.call, place);
  out.dtype = kept.view().dtype;
  out.row_size = kept.view().row_size();
  out.first = elements_.got.size();
  for (int64_t r = 0; r < kept.view().rows(); ++r) {
    out.at.push_back(r * out.row_size);
    add_row(numbers_of(kept.view(), r * out.row_size, out.row_size),
            right.at(key_of(elements_.rows[static_cast<size_t>(r)])));
  }
}

void Outputs::put_half(const Place& cache, int half, const RightRows& right) {
  CaseElements::Output& out = elements_.outputs.emplace_back();
  out.argument = half == 0 ? "cache.k" : "cache.v";
  out.first = elements_.got.size();
  for (size_t r = 0; r < elements_.rows.size(); ++r) {
    const Row& row = elements_.rows[r];
    const RecordedTensor* kv = seen_.find(*cache.point, cache.layer, row.request);
    check(kv != nullptr && !kv->data.view().empty(), "the numbers of {} were not kept",
          text_of(cache));
    out.dtype = kv->dtype;
    out.row_size = kv->data.view().row_size() / 2;
    out.at.push_back(inputs_.pass().info.rows[r].slot * out.row_size);
    add_row(numbers_of(kv->data, (2 * row.position + half) * out.row_size, out.row_size),
            right.at(key_of(row)));
  }
}

bool Outputs::is_wrong_from(size_t first) const {
  for (size_t i = first; i < elements_.got.size(); ++i)
    if (elements_.is_wrong(i)) return true;
  return false;
}

void Outputs::put() {
  const Graph& graph = judge_.manifest.graph;
  const std::map<int, RightRows> right =
      judge_.call.fused.empty() ? std::map<int, RightRows>() : judged();
  std::vector<Place> wrong;
  for (const Place& place : judge_.call.outputs) {
    const std::vector<Place> inputs = graph.inputs_of(place);
    if (place.point->is_cache()) {
      for (int half = 0; half < 2; ++half) {
        const Place& from = inputs.at(static_cast<size_t>(half));
        put_half(place, half, is_stored(from) ? right.at(from.point->order()) : given(from));
      }
      continue;
    }
    const bool of_wrong = std::ranges::any_of(
        wrong, [&](const Place& one) { return std::ranges::count(inputs, one) > 0; });
    // K goes to the cache alone.
    if (of_wrong || argument_of(judge_.call, place) == "cache") continue;
    const auto found = right.find(place.point->order());
    check(found != right.end(), "{} could not be judged by what its op reads", text_of(place));
    const size_t first = elements_.got.size();
    put_plain(place, found->second);
    if (is_wrong_from(first)) wrong.push_back(place);
  }
}

}  // namespace

void put_outputs(const CaseJudge& judge, const Pass& op_case, const OpInputs& inputs,
                 const std::vector<RecordedTensor>& made, CaseElements& elements) {
  Outputs(judge, op_case, inputs, made, elements).put();
}

}  // namespace lockstep
