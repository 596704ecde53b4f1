// A case made as small as it stays wrong, in four steps, each by delta debugging (Zeller and
// Hildebrandt 2002): rows of the pass, keys of each request, keys whose K and V are not zero, and,
// for a product, columns of its input that are not zero.
//
//   items -> cut into n pieces -> one piece alone wrong? keep it
//                              -> all but one piece wrong? keep these
//                              -> neither: twice as many pieces, until each is one item
//
// Every candidate is judged as any run is; "wrong" is what the judge says, so that the reduced case
// still shows the bug and not another. A kernel that fails on a candidate shows something else, and
// the candidate is dropped.
#include "src/replay/reduction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// Cases that are tried in one step.
constexpr int64_t kMostTries = 400;

// 0, 1, .. count - 1.
std::vector<int64_t> counting(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

// The pieces that items are cut into, in their order.
std::vector<std::vector<int64_t>> cut(const std::vector<int64_t>& items, size_t pieces) {
  std::vector<std::vector<int64_t>> all;
  for (size_t i = 0; i < pieces; ++i) {
    const auto first = items.begin() + static_cast<int64_t>(items.size() * i / pieces);
    const auto last = items.begin() + static_cast<int64_t>(items.size() * (i + 1) / pieces);
    if (first != last) all.emplace_back(first, last);
  }
  return all;
}

std::vector<int64_t> without(const std::vector<int64_t>& items, const std::vector<int64_t>& some) {
  std::vector<int64_t> rest;
  std::ranges::set_difference(items, some, std::back_inserter(rest));
  return rest;
}

// A copy of some rows of a tensor, by their indices.
RecordedTensor with_rows(const RecordedTensor& tensor, const std::vector<int64_t>& kept) {
  RecordedTensor some = tensor;
  std::vector<int64_t> extents(tensor.shape.extents().begin(), tensor.shape.extents().end());
  extents[0] = std::ssize(kept);
  some.shape = Shape(extents);
  some.data = Tensor(some.shape, tensor.dtype);
  some.rows.clear();
  const size_t bytes = tensor.data.view().row_size() * size_of(tensor.dtype);
  for (size_t i = 0; i < kept.size(); ++i) {
    const size_t from = kept[i];
    some.rows.push_back(tensor.rows.at(from));
    std::memcpy(some.data.as<char>() + i * bytes, tensor.data.as<char>() + from * bytes, bytes);
  }
  return some;
}

// The pass with those of its rows, by number. Tensors keep what they have of others.
Pass with_rows(const Pass& pass, const std::vector<int64_t>& kept) {
  Pass some = pass;
  some.info.rows.clear();
  some.info.logit_rows.clear();
  for (const int64_t row : kept) {
    if (std::ranges::count(pass.info.logit_rows, static_cast<int32_t>(row)) > 0)
      some.info.logit_rows.push_back(static_cast<int32_t>(some.info.rows.size()));
    some.info.rows.push_back(pass.info.rows[row]);
  }
  // K and V that no query of it sees are left out.
  for (RecordedTensor& tensor : some.tensors) {
    if (!tensor.point->is_cache()) continue;
    int64_t length = 0;
    for (const PassRow& row : some.info.rows)
      if (row.row.request == tensor.rows.front().request)
        length = std::max<int64_t>(length, row.row.position + 1);
    if (length > 0 && length < std::ssize(tensor.rows))
      tensor = with_rows(tensor, counting(length));
  }
  std::erase_if(some.info.pages, [&](const RequestPages& table) {
    return std::ranges::none_of(
        some.info.rows, [&](const PassRow& row) { return row.row.request == table.request; });
  });
  return some;
}

// The pass in which one request has those keys alone, at positions without gaps.
Pass with_keys(const Pass& pass, int32_t request, const std::vector<int64_t>& kept) {
  Pass some = pass;
  const auto moved = [&](Row& row) {
    if (row.request == request)
      row.position =
          static_cast<int32_t>(std::ranges::lower_bound(kept, row.position) - kept.begin());
  };
  for (PassRow& row : some.info.rows) moved(row.row);
  some.info.pages.clear();  // each gets pages of its own
  for (RecordedTensor& tensor : some.tensors) {
    if (tensor.point->is_cache() && tensor.rows.front().request == request)
      tensor = with_rows(tensor, kept);
    // Rows that are not computed may fall together, and nobody reads them.
    if (!tensor.point->is_cache()) {
      std::vector<int64_t> own;
      for (size_t i = 0; i < tensor.rows.size(); ++i)
        if (std::ranges::count(pass.info.rows, tensor.rows[i], &PassRow::row) > 0)
          own.push_back(static_cast<int64_t>(i));
      tensor = with_rows(tensor, own);
    }
    for (Row& row : tensor.rows) moved(row);
  }
  return some;
}

// The pass in which K and V of one request are 0 but at those positions.
Pass with_nonzero_keys(const Pass& pass, int32_t request, const std::vector<int64_t>& kept) {
  Pass some = pass;
  for (RecordedTensor& tensor : some.tensors) {
    if (!tensor.point->is_cache() || tensor.rows.front().request != request) continue;
    tensor = with_rows(tensor, counting(std::ssize(tensor.rows)));
    const size_t bytes = tensor.data.view().row_size() * size_of(tensor.dtype);
    for (size_t p = 0; p < tensor.rows.size(); ++p)
      if (!std::ranges::binary_search(kept, static_cast<int64_t>(p)))
        std::memset(tensor.data.as<char>() + p * bytes, 0, bytes);
  }
  return some;
}

// The pass in which what a product multiplies is 0 but in those columns.
Pass with_columns(const Pass& pass, const Place& input, const std::vector<int64_t>& kept) {
  Pass some = pass;
  for (RecordedTensor& tensor : some.tensors) {
    if (!(Place{tensor.point, tensor.layer} == input)) continue;
    tensor = with_rows(tensor, counting(std::ssize(tensor.rows)));
    const int64_t width = tensor.data.view().row_size();
    const size_t bytes = size_of(tensor.dtype);
    std::vector<bool> keeps(static_cast<size_t>(width));
    for (const int64_t column : kept) keeps[column] = true;
    for (int64_t i = 0; i < tensor.data.view().count(); ++i)
      if (!keeps[i % width])
        std::memset(tensor.data.as<char>() + static_cast<size_t>(i) * bytes, 0, bytes);
  }
  return some;
}

// Holds the case, smaller after each step, and what was done.
class Reducer {
 public:
  Reducer(const CaseJudge& judge, Pass op_case, bool stored)
      : judge_(judge), stored_(stored), case_(std::move(op_case)) {}

  void rows(const CaseElements& elements);
  void keys(int32_t request);
  void nonzero_keys(int32_t request);
  void columns();
  Reduced take();

  const Pass& op_case() const { return case_; }

 private:
  // An op that fails there shows something else.
  bool shows(const Pass& candidate) const {
    try {
      return !judged_case(judge_, candidate, stored_).wrong().empty();
    } catch (const Error&) {
      return false;
    }
  }
  void reduce(const std::string& what, std::vector<int64_t> items,
              const std::vector<int64_t>& always,
              const std::function<Pass(const std::vector<int64_t>&)>& make);
  std::vector<int64_t> queries_of(int32_t request) const;
  int64_t length_of(int32_t request) const;

  const CaseJudge& judge_;
  bool stored_;
  Pass case_;
  std::vector<std::string> steps_;
};

// `always` are items that every candidate has: queries see their own keys.
void Reducer::reduce(const std::string& what, std::vector<int64_t> items,
                     const std::vector<int64_t>& always,
                     const std::function<Pass(const std::vector<int64_t>&)>& make) {
  const auto with_always = [&](const std::vector<int64_t>& some) {
    std::vector<int64_t> all;
    std::ranges::set_union(some, always, std::back_inserter(all));
    return all;
  };
  const size_t before = with_always(items).size();
  int64_t tries = kMostTries;
  const auto shows_with = [&](const std::vector<int64_t>& some) {
    return shows(make(with_always(some)));
  };
  const std::vector<int64_t> left = with_always(fewest(without(items, always), shows_with, tries));
  if (left.size() == before) return;
  case_ = make(left);
  steps_.push_back(fmt::format("{} {} to {}", what, before, left.size()));
}

// The row of the worst element is enough for most.
void Reducer::rows(const CaseElements& elements) {
  const Row worst = elements.row_of(elements.worst());
  const auto at = std::ranges::find(case_.info.rows, worst, &PassRow::row);
  const int64_t all = std::ssize(case_.info.rows);
  const Pass pass = case_;
  if (Pass one = with_rows(pass, {at - case_.info.rows.begin()}); all > 1 && shows(one)) {
    case_ = std::move(one);
    steps_.push_back(fmt::format("rows {} to 1", all));
    return;
  }
  reduce("rows", counting(all), {},
         [&](const std::vector<int64_t>& kept) { return with_rows(pass, kept); });
}

std::vector<int64_t> Reducer::queries_of(int32_t request) const {
  std::vector<int64_t> positions;
  for (const PassRow& row : case_.info.rows)
    if (row.row.request == request) positions.push_back(row.row.position);
  return positions;
}

// Keys that some query of the request may see.
int64_t Reducer::length_of(int32_t request) const {
  const std::vector<int64_t> queries = queries_of(request);
  return queries.empty() ? 0 : queries.back() + 1;
}

void Reducer::keys(int32_t request) {
  const Pass pass = case_;
  reduce(fmt::format("keys of request {}", request), counting(length_of(request)),
         queries_of(request),
         [&](const std::vector<int64_t>& kept) { return with_keys(pass, request, kept); });
}

void Reducer::nonzero_keys(int32_t request) {
  const Pass pass = case_;
  reduce(fmt::format("keys of request {} that are not 0", request), counting(length_of(request)),
         {},
         [&](const std::vector<int64_t>& kept) { return with_nonzero_keys(pass, request, kept); });
}

void Reducer::columns() {
  const Place input = judge_.call.reads.at(0);
  const RecordedTensor* tensor = case_.find(*input.point, input.layer);
  const Pass pass = case_;
  reduce("inputs that are not 0", counting(tensor->data.view().row_size()), {},
         [&](const std::vector<int64_t>& kept) { return with_columns(pass, input, kept); });
}

Reduced Reducer::take() {
  CaseElements elements = judged_case(judge_, case_, stored_);
  return {std::move(case_), std::move(elements), std::move(steps_)};
}

}  // namespace

std::vector<int64_t> fewest(std::vector<int64_t> items,
                            const std::function<bool(const std::vector<int64_t>&)>& shows,
                            int64_t& tries) {
  const auto holds = [&](const std::vector<int64_t>& some) { return tries-- > 0 && shows(some); };
  if (items.empty() || holds({})) return {};
  size_t pieces = 2;
  while (items.size() > 1 && tries > 0) {
    const auto parts = cut(items, std::min(pieces, items.size()));
    const auto alone = std::ranges::find_if(parts, holds);
    if (alone != parts.end()) {
      items = *alone;
      pieces = 2;
      continue;
    }
    const auto left_out = std::ranges::find_if(
        parts, [&](const std::vector<int64_t>& part) { return holds(without(items, part)); });
    if (left_out != parts.end()) {
      items = without(items, *left_out);
      pieces = std::max<size_t>(2, pieces - 1);
      continue;
    }
    if (pieces >= items.size()) break;
    pieces = std::min(items.size(), 2 * pieces);
  }
  return items;
}

Reduced reduced(const CaseJudge& judge, Pass op_case, const CaseElements& elements, bool stored) {
  Reducer reducer(judge, std::move(op_case), stored);
  reducer.rows(elements);
  // A stored result belongs to its own inputs, which cannot be changed then.
  if (stored) return reducer.take();
  std::vector<int32_t> requests;
  for (const PassRow& row : reducer.op_case().info.rows)
    if (std::ranges::count(requests, row.row.request) == 0) requests.push_back(row.row.request);
  const Place& first = judge.call.hidden.empty() ? judge.call.named : judge.call.hidden.front();
  if (judge.call.named.point->op == OpKind::attention) {
    for (const int32_t request : requests) reducer.keys(request);
    for (const int32_t request : requests) reducer.nonzero_keys(request);
  }
  if (row_of(first.point->op).has_matrix) reducer.columns();
  return reducer.take();
}

}  // namespace lockstep
