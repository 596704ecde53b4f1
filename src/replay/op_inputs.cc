// The rows of a pass that can be computed again: those of which everything that the op reads was
// kept. What is missing is said in words, so that a replay of nothing tells why.
#include "src/replay/op_inputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/judge/ledger.h"

namespace lockstep {
namespace {

bool has_row(const RecordedTensor& tensor, const Row& row) {
  return std::ranges::find(tensor.rows, row) != tensor.rows.end();
}

// Whether row b is the one after a.
bool follows(const Row& a, const Row& b) {
  return a.request == b.request && b.position == a.position + 1;
}

}  // namespace

bool uses_cache(const Point& p) { return p.op == OpKind::attention || p.is_cache(); }

TensorView OpInputs::at(const Point& p, int layer) const {
  const auto found = tensors_.find({p.order(), layer});
  return found == tensors_.end() ? TensorView{} : found->second;
}

std::string OpInputs::pick(const Pass& kept, const Place& place, const std::vector<Place>& reads) {
  std::vector<const RecordedTensor*> read;
  for (const Place& input : reads) {
    if (input.point->is_cache()) continue;
    const RecordedTensor* tensor = kept.find(*input.point, input.layer);
    const bool there = tensor != nullptr && !tensor->data.view().empty();
    if (!there && input.point->op == OpKind::angles) continue;  // a kernel may make its own
    if (!there) return fmt::format("the numbers of {} were not kept", text_of(input));
    read.push_back(tensor);
  }
  const bool of_logits = place.point->is_of_logits();
  std::vector<PassRow> some;
  if (of_logits)
    for (const int32_t row : kept.info.logit_rows) some.push_back(kept.info.rows.at(row));
  else
    some = kept.info.rows;
  // Rows that lack an input are left out rather than the whole pass: a trace of a selection may
  // have some of them.
  std::erase_if(some, [&](const PassRow& row) {
    return !std::ranges::all_of(read, [&](const auto* t) { return has_row(*t, row.row); });
  });
  if (some.empty()) return "no row has all that the op reads";
  pass_.info.rows = some;
  pass_.info.logit_rows.clear();
  for (size_t i = 0; i < some.size(); ++i) {
    rows_.push_back(some[i].row);
    if (of_logits) pass_.info.logit_rows.push_back(static_cast<int32_t>(i));
  }
  for (const RecordedTensor* tensor : read)
    tensors_[{tensor->point->order(), tensor->layer}] = picked_.emplace_back(tensor, rows_).view();
  return "";
}

// Attention takes the queries of a request for the last positions of a stretch; where rows between
// were left out, each stretch becomes a request of its own over the same pages.
void OpInputs::part_requests() {
  bool whole = true;
  for (size_t i = 1; i < rows_.size(); ++i)
    whole = whole && (rows_[i].request != rows_[i - 1].request || follows(rows_[i - 1], rows_[i]));
  if (whole) return;
  std::vector<RequestPages> tables;
  int32_t part = -1;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (i == 0 || !follows(rows_[i - 1], rows_[i])) {
      ++part;
      const auto table =
          std::ranges::find(pass_.info.pages, rows_[i].request, &RequestPages::request);
      if (table != pass_.info.pages.end()) tables.push_back({part, table->pages});
    }
    pass_.info.rows[i].row.request = part;
  }
  pass_.info.pages = std::move(tables);
}

std::string OpInputs::pick_cache(const Pass& kept, const Place& place, const Place& cache,
                                 const KvHistory& history, const PoolFacts& pool) {
  std::map<int32_t, KeysValues> read, held;  // by request of the trace; of this pass
  int64_t position_bytes = 1;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const int32_t request = rows_[i].request;
    if (!read.contains(request)) {
      const RecordedTensor* kv = kept.find(*cache.point, cache.layer, request);
      if (kv == nullptr) return fmt::format("{} was not kept", text_of(cache));
      const CacheRead& values = caches_.emplace_back(kv, history);
      if (!values.trouble().empty()) return values.trouble();
      read[request] = values.keys_values();
    }
    const KeysValues& values = read[request];
    if (rows_[i].position >= values.k.rows())
      return fmt::format("{} ends before position {}", text_of(cache), rows_[i].position);
    position_bytes = 2 * values.k.row_size() * size_of(values.k.dtype);
    held[pass_.info.rows[i].row.request] = values;
  }
  pass_ = paged(std::move(pass_.info), pool, position_bytes);
  const std::vector<PassRow> none;
  // The rows that the op itself writes are left out, so that it must write them.
  cache_ = filled_cache(pass_, held, place.point->is_cache() ? pass_.info.rows : none);
  return "";
}

OpInputs::OpInputs(const Pass& kept, const Place& place, const std::vector<Place>& reads,
                   const KvHistory& history, const PoolFacts& pool) {
  pass_.info = kept.info;
  lacking_ = pick(kept, place, reads);
  if (!lacking_.empty()) return;
  if (place.point->op == OpKind::attention) part_requests();
  if (uses_cache(*place.point)) {
    const Place cache = place.point->is_cache() ? place : Place{&point("attn.kv"), place.layer};
    lacking_ = pick_cache(kept, place, cache, history, pool);
  } else {
    pass_ = paged(std::move(pass_.info), pool, 1);
    pass_.unlike_run.clear();  // the op reads neither
  }
}

}  // namespace lockstep
