// Every number of an answer belongs to one row, so that answers about neighbouring rows are joined
// by putting one behind the other. Rows that were measured on a device stay there, part by part. If
// one part has a row that could not be measured, no part may be: an answer about all rows would
// have none that are.
#include "src/judge/halving_oracle.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "src/judge/no_memory.h"
#include "src/stats/distant_rows.h"

namespace lockstep {
namespace {

// The measured rows of several answers, one behind the other.
class JoinedRows final : public DistantRows {
 public:
  void add(std::shared_ptr<const DistantRows> rows, size_t count) {
    parts_.push_back(std::move(rows));
    begins_.push_back(begins_.back() + count);
  }

  void put_row(size_t i, DistantRow& into) const override {
    const auto p = std::ranges::upper_bound(begins_, i) - begins_.begin() - 1;
    parts_[p]->put_row(i - begins_[p], into);
  }
  std::shared_ptr<const DistantColumns> columns(std::span<const int64_t> rows) const override {
    auto all = std::make_shared<DistantColumns>();
    for (size_t p = 0; p < parts_.size(); ++p) {
      const auto first = std::ranges::lower_bound(rows, static_cast<int64_t>(begins_[p]));
      const auto end = std::ranges::lower_bound(rows, static_cast<int64_t>(begins_[p + 1]));
      std::vector<int64_t> own(first, end);
      const auto before = static_cast<int64_t>(begins_[p]);
      for (int64_t& row : own) row -= before;
      if (!own.empty()) add(*parts_[p]->columns(own), before, *all);
    }
    return all;
  }

 private:
  // The part's rows come after those of `all`: as bad a one does not replace the worst so far.
  static void add(DistantColumns part, int64_t before, DistantColumns& all) {
    for (auto* worst : {&part.worst, &part.worst_misrounded})
      for (DistantColumns::Worst& of : *worst)
        if (of.row >= 0) of.row += before;
    if (all.elements.empty()) {
      all = std::move(part);
      return;
    }
    for (const auto sums :
         {&DistantColumns::elements, &DistantColumns::squares, &DistantColumns::due,
          &DistantColumns::misrounded, &DistantColumns::may_misround})
      for (size_t i = 0; i < (all.*sums).size(); ++i) (all.*sums)[i] += (part.*sums)[i];
    for (const auto worst : {&DistantColumns::worst, &DistantColumns::worst_misrounded})
      for (size_t i = 0; i < (all.*worst).size(); ++i)
        if ((part.*worst)[i].budgets > (all.*worst)[i].budgets) (all.*worst)[i] = (part.*worst)[i];
  }

  std::vector<std::shared_ptr<const DistantRows>> parts_;
  std::vector<size_t> begins_ = {0};  // of each part, and behind the last one
};

// All of `numbers_of` one part after the other; where none has any there are none.
Numbers joined(const std::vector<Exact>& parts, const auto& numbers_of) {
  size_t count = 0;
  for (const Exact& part : parts) count += numbers_of(part).size();
  std::vector<double> all;
  all.reserve(count);  // there is little memory
  for (const Exact& part : parts)
    all.insert(all.end(), numbers_of(part).begin(), numbers_of(part).end());
  return all;
}

Exact joined(const std::vector<Exact>& parts) {
  const Exact& first = parts.front();
  std::vector<int64_t> extents(first.shape.extents().begin(), first.shape.extents().end());
  extents[0] = 0;
  for (const Exact& part : parts) extents[0] += part.shape[0];
  Exact all{.contract = first.contract, .shape = Shape(extents), .terms = first.terms};
  for (const auto field : {&Exact::want, &Exact::row_terms, &Exact::serial_error, &Exact::magnitude,
                           &Exact::spread, &Exact::spread_squares, &Exact::weighted_squares,
                           &Exact::score, &Exact::angle, &Exact::x1c_x2s, &Exact::turned,
                           &Exact::factor, &Exact::overlap, &Exact::ties, &Exact::tie_squares})
    all.*field = joined(parts, [&](const Exact& part) -> const Numbers& { return part.*field; });
  for (size_t s = 0; s < first.steps.size(); ++s) {
    Step& step = all.steps.emplace_back();
    for (const auto field : {&Step::value, &Step::slope, &Step::other})
      step.*field = joined(
          parts, [&](const Exact& part) -> const Numbers& { return part.steps.at(s).*field; });
  }
  if (!first.measured) return all;
  auto measured = std::make_shared<JoinedRows>();
  for (const Exact& part : parts) measured->add(part.measured, part.shape[0]);
  all.measured = std::move(measured);
  return all;
}

}  // namespace

OracleCall rows_of_call(const OracleCall& call, size_t first, size_t count) {
  const auto from = static_cast<int64_t>(first), rows = static_cast<int64_t>(count);
  const auto part = [&](auto span) { return span.empty() ? span : span.subspan(first, count); };
  OracleCall some = call;
  some.rows = part(call.rows), some.tokens = part(call.tokens), some.lengths = part(call.lengths);
  for (TensorView& input : some.inputs) input = input.slice(from, rows);
  RowsToMeasure& measure = some.measure;
  if (!measure.got.empty()) measure.got = measure.got.slice(from, rows);
  measure.exact.first += from, measure.rounded.first += from;
  return some;
}

size_t HalvingOracle::most_rows(const Point& point) const {
  const std::lock_guard lock(mutex_);
  const auto found = most_rows_.find(point.order());
  return found == most_rows_.end() ? std::numeric_limits<size_t>::max() : found->second;
}

// Another thread may have found meanwhile that there is memory for fewer still.
void HalvingOracle::expect_at_most(size_t rows, const Point& point) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = most_rows_.try_emplace(point.order(), rows);
  known->second = std::min(known->second, rows);
}

Exact HalvingOracle::evaluate(const OracleCall& call) {
  const size_t count = call.rows.size();
  std::vector<Exact> parts;
  // Asked again if no row may be measured there, which takes more memory than the results alone.
  const auto unmeasured = [&] {
    parts.clear();
    OracleCall plain = call;
    plain.measure = {};
    return evaluate(plain);
  };
  for (size_t first = 0; first < count || parts.empty();) {
    const size_t some = std::min(count - first, most_rows(*call.place.point));
    try {
      parts.push_back(oracle_.evaluate(some == count ? call : rows_of_call(call, first, some)));
    } catch (const NoMemory&) {
      if (some > 1) {
        expect_at_most((some + 1) / 2, *call.place.point);
      } else if (!call.measure.got.empty()) {
        return unmeasured();
      } else {
        throw;
      }
      continue;
    }
    if (some == count) return std::move(parts.front());
    first += some;
    if (!parts.back().measured != !parts.front().measured) return unmeasured();
  }
  return joined(parts);
}

}  // namespace lockstep
