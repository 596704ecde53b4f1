// An element is looked at once: measure() makes of a row all that the sums need, and add() merges
// rows in their order, so that sums in floating point do not depend on the number of threads. Rows
// that are equal in all their numbers are one observation: a prompt of one token repeated a hundred
// times has one rounding, not a hundred.
#include "src/stats/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>

#include "kernels/base/dtype.h"
#include "src/stats/mutant.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

// A budget that is not a positive number can vouch for nothing.
double in_budgets(double difference, double limit) {
  if (!(limit > 0) || !std::isfinite(limit)) return std::numeric_limits<double>::infinity();
  return std::fabs(difference) / limit;
}

void keep_worse(std::optional<Element>& worst, const std::optional<Element>& other) {
  if (other && (!worst || other->budgets > worst->budgets)) worst = other;
}

// The element of a row, as it was measured.
Element element_of(const WeighedRow& row, int64_t position, size_t i) {
  return {position, static_cast<int64_t>(i), row.want[i], row.got[i], row.budgets[i]};
}

// Shares columns among threads, a line of the cache of each amount at least to each.
void for_columns(int64_t columns, ThreadPool* threads, const auto& body) {
  constexpr int64_t kLeast = 64;
  const int64_t each = threads ? columns / threads->size() : columns;
  const int64_t some = std::clamp(each, kLeast, kColumnsTogether) / kLeast * kLeast;
  parallel_for(threads, (columns + some - 1) / some, 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * some; first < std::min(end * some, columns); first += some)
      body(first, std::min(columns, first + some));
  });
}

}  // namespace

void NodeSlice::add(const Scatter& some, const Element& their_worst,
                    const std::optional<Element>& their_misrounded) {
  if (elements == 0 || their_worst.budgets > worst.budgets) worst = their_worst;
  keep_worse(misrounded_worst, their_misrounded);
  Scatter::add(some);
}

void NodeSlice::add(const NodeSlice& of_row, double row_size) {
  if (elements == 0 || of_row.worst.budgets > worst.budgets)
    worst = beside_row(of_row.worst, row_size);
  const std::optional<Element>& theirs = of_row.misrounded_worst;
  if (theirs && (!misrounded_worst || theirs->budgets > misrounded_worst->budgets))
    misrounded_worst = beside_row(*theirs, row_size);
  Scatter::add(of_row);
}

NodeSlice& SlicesByKey::operator[](int64_t key) {
  if (!slices_.empty() && slices_.back().first == key) return slices_.back().second;
  if (slices_.empty() || slices_.back().first < key)
    return slices_.emplace_back(key, NodeSlice()).second;
  const auto at = std::ranges::lower_bound(slices_, key, {}, [](const auto& s) { return s.first; });
  if (at->first == key) return at->second;
  return slices_.insert(at, {key, NodeSlice()})->second;
}

Meter::Meter(const Meter::Options& options, int64_t rows, PlacePool* pool)
    : options_(options),
      row_size_(options.row_shape.count()),
      head_size_(options.row_shape.rank() == 2 ? options.row_shape[1] : 0),
      largest_(format_of(options.dtype).max),
      pool_(pool) {
  if (head_size_ > 0) heads_.resize(options.row_shape[0]);
  if (options.node_class != NodeClass::exact) rows_.reserve(rows);
  // A column has an element a row: with fewer rows none is long enough for T4.
  if (rows >= kLeastSlice) column_count_ = row_size_;
}

void Meter::begin_columns() {
  if (columns_.size() == static_cast<size_t>(column_count_)) return;
  columns_.resize(column_count_);
  worst_of_columns_.resize(column_count_);
  most_of_columns_.resize(column_count_, -1);
  most_misrounded_of_columns_.resize(column_count_, -1);
}

Element beside_row(Element e, double size) {
  if (size > 0) e.of_row = std::fabs(e.got - e.want) / size;
  return e;
}

void Meter::take(const RowSums& sums, int64_t elements, Measure& measure) {
  measure.elements = elements;
  measure.different = sums.different;
  measure.over = sums.over;
  measure.sum_squares = sums.squares;
  measure.largest = sums.largest;
  measure.inner = sums.inner;
}

Meter::Stored Meter::stored(int64_t position, int64_t offset, const RowNumbers& row) const {
  const size_t i = offset;
  const double got = row.got[i];
  double want = row.want[i];
  if (is_mutant(Mutant::exact_one_ulp_off)) want += ulp(want, options_.dtype);
  const Element element{position, offset, want, got, in_budgets(got - want, row.limit[i])};
  double rounded = round_to(want, options_.dtype);
  if (is_either(element, rounded, row)) rounded = got;
  // NaN of any payload is the same; of an exact op the sign of a zero counts.
  bool different = got != rounded && !(std::isnan(got) && std::isnan(rounded));
  if (options_.node_class == NodeClass::exact)
    different = different || std::signbit(got) != std::signbit(rounded);
  return {element, rounded, ulp(want, options_.dtype), different};
}

bool Meter::is_either(const Element& e, double rounded, const RowNumbers& row) const {
  if (options_.node_class == NodeClass::exact || !row.meets_borders) return false;
  const double half = ulp(e.want, options_.dtype) / 2, inner = row.limit[e.offset] - half;
  if (std::isinf(inner)) return false;  // such a budget tells nothing of errors
  return on_border(std::fabs(half - std::fabs(rounded - e.want)), inner) &&
         on_border(std::fabs(e.got - e.want) - half, inner);
}

Measure::NonFinite Meter::kind_of(const Stored& stored, double limit) const {
  const Element& e = stored.element;
  if (is_mutant(Mutant::nan_passes) && std::isnan(e.got)) return Measure::NonFinite::expected;
  if (!std::isfinite(e.want)) return kind_of_infinite(e);
  if (std::fabs(e.got) < largest_) return Measure::NonFinite::none;
  // Rounding up across the border needs no more than what the op may be off before it rounds.
  const double inner = std::max(0.0, limit - stored.spacing / 2);
  const bool overflows = std::isinf(round_to(std::fabs(e.want) + inner, options_.dtype));
  const bool saturated =
      options_.may_saturate && std::isinf(stored.rounded) && std::fabs(e.got) == largest_;
  const bool same_sign = std::signbit(e.got) == std::signbit(e.want);
  if (overflows && same_sign && (std::isinf(e.got) || saturated))
    return Measure::NonFinite::expected;
  return std::isfinite(e.got) ? Measure::NonFinite::none : Measure::NonFinite::introduced;
}

Measure::NonFinite Meter::kind_of_infinite(const Element& e) const {
  bool as_wanted = !std::isfinite(e.got);  // what is no number may be any
  if (std::isinf(e.want))
    as_wanted = e.got == e.want ||
                (options_.may_saturate && e.got == std::copysign(largest_, e.want)) ||
                (options_.may_lose_weights && std::isnan(e.got));
  return as_wanted ? Measure::NonFinite::propagated : Measure::NonFinite::introduced;
}

void Meter::exclude(Row& measured, const Element& e, Measure::NonFinite kind) const {
  Measure& measure = measured.measure;
  if (kind == Measure::NonFinite::introduced) note_wrong(measured, e.offset);
  ++measure.excluded;
  // A graver kind makes what was counted before it irrelevant.
  if (kind > measure.nonfinite) {
    measure.nonfinite = kind;
    measure.nonfinite_count = 0;
    measure.nonfinite_at = e;
  }
  if (kind == measure.nonfinite) ++measure.nonfinite_count;
}

void Meter::note_wrong(Row& measured, size_t element) const {
  std::vector<WrongRow>& wrong = measured.measure.wrong;
  if (wrong.empty()) wrong.push_back({0, std::vector<bool>(row_size_)});
  wrong.back().elements[element] = true;
}

void Meter::compare(Row& measured, const Stored& stored, double limit) const {
  Measure& measure = measured.measure;
  const Element& e = stored.element;
  const double eta = e.got - e.want, half = stored.spacing / 2;
  // The share of B beyond the final rounding: what the accumulation and the roundings on the way
  // used.
  if (limit > half)
    measure.inner = std::max(measure.inner, (std::fabs(eta) - half) / (limit - half));
  measure.sum_squares += eta * eta;
  if (!within(e.budgets, 1)) ++measure.over;
  if (stored.different) keep_worse(measure.misrounded, e);
  const bool exact = options_.node_class == NodeClass::exact;
  if (exact ? stored.different : !within(e.budgets, 1)) note_wrong(measured, e.offset);
  const bool candidate = stored.different || !exact;
  if (!candidate || (measured.any_worst && !(e.budgets > measure.worst.budgets))) return;
  measure.worst = e;
  measured.any_worst = true;
}

void Meter::weigh(Row& measured, const Stored& stored, const RowNumbers& row) const {
  const Element& e = stored.element;
  const size_t i = e.offset;
  const double variance = row.variance[i], eta = e.got - e.want;
  if (std::isinf(variance)) return;  // held to B alone
  const double unit = in_budgets(eta * eta, variance);
  Moments& sum = measured.sum;
  WeighedRow& weighed = measured.elements;
  weighed.want[i] = e.want;
  weighed.got[i] = to_f32(e.got);
  weighed.unit[i] = to_f32(unit);
  weighed.budgets[i] = to_f32(e.budgets);
  weighed.may_misround[i] = to_f32(row.misround[i]);
  if (options_.rows_alike && !row.carried.empty())
    weighed.common[i] = to_f32(row.carried[i] / variance);
  weighed.misrounded[i] = stored.different ? 1 : 0;
  ++sum.elements;
  sum.squares += unit;
  sum.common += weighed.common[i];
  if (row.misround[i] <= row.usual_misround) {
    sum.misrounded += stored.different ? 1 : 0;
    sum.may_misround += row.misround[i];
  }
  if (!std::isfinite(unit)) return;
  // Both are numbers of the dtype, so that the difference is exact in fp64 where they are near.
  const double delta = e.got - stored.rounded;
  if (!std::isfinite(delta)) return;  // finite where an overflow was due: T1 says so
  const double rest = stored.rounded - e.want;
  // A rounding that is evenly spread has a mean square of ulp^2 / 12: `due` is by how much that of
  // this exact result differs.
  const double due = (rest * rest - stored.spacing * stored.spacing / 12) / variance;
  weighed.due[i] = to_f32(due);
  sum.due += due;
  sum.power += e.want * e.want / variance;
  if (delta == 0 || row.misround[i] > row.misround_in_gain) return;
  const double term = delta * e.want / variance;
  sum.offset += delta / std::sqrt(variance);
  sum.cross += term;
  if (row.shared.empty()) sum.cross_scatter += term * term;
}

void Meter::end_group(Row& measured, const GroupSums& group, const NodeSlice& worst) const {
  NodeSlice slice = worst;
  slice.Scatter::add(group.scatter);
  // (sum f)^2 - sum f^2 is the sum over ordered pairs. A rounding may leave it just under 0.
  slice.pairs = std::max(0.0, group.sum * group.sum - group.squares);
  measured.sum.pairs += slice.pairs;
  measured.sum.cross_scatter += group.cross * group.cross;
  if (head_size_ > 0) measured.heads.push_back(slice);
}

// A head of a row (of each share, where there are shares of it), or the row where there are no
// heads. Elements that share a part of their variance count as fewer. An op's own errors are shared
// within a head, those of its inputs within the row.
void Meter::end_groups(Row& measured, const RowNumbers& row, const StoredRow& stored) const {
  const Shape& axes = options_.row_shape;
  const size_t size = axes.rank() > 1 ? axes.last() : row_size_;
  const bool carries = !row.carried.empty() && !options_.rows_alike;
  if (head_size_ == 0 && row.shared.empty() && !carries) return;
  const std::span<const double> of_inputs = carries ? row.carried : std::span<const double>();
  const WeighedRow& elements = measured.elements;
  // The first element of the group that is as bad as the worst.
  const auto worst = [&](size_t first, float most, bool misrounded) {
    size_t i = first;
    while (!elements.counts(i) || (misrounded && elements.misrounded[i] == 0) ||
           elements.budgets[i] < most)
      ++i;
    return element_of(elements, measured.position, i);
  };
  double carried = 0, carried_in_heads = 0;
  for (size_t first = 0; size > 0 && first < row.got.size(); first += size) {
    const GroupSums group = sum_group(row, row.shared, of_inputs, stored, elements, first, size);
    carried += group.carried;
    carried_in_heads += group.carried * group.carried;
    NodeSlice slice;
    if (head_size_ > 0 && group.most >= 0) slice.worst = worst(first, group.most, false);
    if (head_size_ > 0 && group.most_misrounded >= 0)
      slice.misrounded_worst = worst(first, group.most_misrounded, true);
    end_group(measured, group, slice);
  }
  // Pairs within a head have been counted: these are the ones across heads.
  measured.sum.pairs += std::max(0.0, carried * carried - carried_in_heads);
}

void Meter::measure_plain(Row& measured, const RowNumbers& row, const RowSums& sums,
                          const StoredRow& stored) const {
  const size_t count = row.got.size();
  const bool exact = options_.node_class == NodeClass::exact;
  Measure& of = measured.measure;
  take(sums, std::ssize(row.got), of);
  const auto differs = [&](size_t i) {
    return row.got[i] != stored.rounded[i] ||
           (exact && std::signbit(row.got[i]) != std::signbit(stored.rounded[i]));
  };
  const auto first_of = [&](double most, bool differing) {
    size_t i = 0;
    while (stored.budgets[i] != most || (differing && !differs(i))) ++i;
    const auto offset = static_cast<int64_t>(i);
    return Element{measured.position, offset, row.want[i], row.got[i], stored.budgets[i]};
  };
  if (sums.different > 0) of.misrounded = first_of(sums.most_differing, true);
  measured.any_worst = count > 0 && (!exact || sums.different > 0);
  if (measured.any_worst) of.worst = exact ? *of.misrounded : first_of(sums.most, false);
  if (exact ? sums.different > 0 : sums.over > 0)
    for (size_t i = 0; i < count; ++i)
      if (exact ? differs(i) : !within(stored.budgets[i], 1)) note_wrong(measured, i);
  if (!exact) weigh_row(row, stored, options_.rows_alike, measured.sum, measured.elements);
}

void Meter::measure_elements(Row& measured, const RowNumbers& row, StoredRow& stored_row) const {
  for (size_t i = 0; i < row.got.size(); ++i) {
    const Stored element = stored(measured.position, i, row);
    stored_row.rounded[i] = element.rounded;
    ++measured.measure.elements;
    const Measure::NonFinite kind = kind_of(element, row.limit[i]);
    // Saturation is another number than Inf, and as right.
    if (element.different && kind != Measure::NonFinite::expected) ++measured.measure.different;
    if (kind != Measure::NonFinite::none) {
      exclude(measured, element.element, kind);
      continue;
    }
    measured.measure.largest = std::max(measured.measure.largest, std::fabs(row.got[i]));
    measured.size += row.want[i] * row.want[i];
    compare(measured, element, row.limit[i]);
    if (options_.node_class != NodeClass::exact) weigh(measured, element, row);
  }
}

// An accumulator that rounds to nearest has no gain of either sign, and its own unit is room for
// it.
void Meter::allow_gain(Row& measured, double gain) const {
  measured.sum.gain = gain;
  measured.sum.growth = options_.truncates ? std::min(gain, kMostGrowth) : gain;
}

Meter::Row Meter::measure(int64_t position, const RowNumbers& row, WeighedRow room) const {
  const bool exact = options_.node_class == NodeClass::exact;
  Row measured{.position = position, .elements = std::move(room)};
  measured.elements.resize(exact ? 0 : row.got.size());
  allow_gain(measured, row.gain);
  // Kept by the thread: vectors that are made anew are cleared, which takes as long as a sum.
  thread_local StoredRow stored_row;
  const RowSums sums = look_at_row(row, options_.dtype, exact, stored_row);
  const bool plain = sums.plain && !is_mutant(Mutant::exact_one_ulp_off);
  if (!plain) measured.elements.clear();
  if (plain)
    measure_plain(measured, row, sums, stored_row);
  else
    measure_elements(measured, row, stored_row);
  measured.size = root_mean(plain ? sums.power : measured.size, std::ssize(row.got));
  Measure& of = measured.measure;
  of.worst = beside_row(of.worst, measured.size);
  if (of.misrounded) of.misrounded = beside_row(*of.misrounded, measured.size);
  const bool wrong = options_.profiled == ProfiledRows::wrong && !of.wrong.empty();
  if (wrong || options_.profiled == ProfiledRows::all) of.errors = profile_of(position, row);
  if (exact) return measured;
  end_groups(measured, row, stored_row);
  measured.sum.end_row();
  measured.hash = hash_of_row(row.want, row.got);
  return measured;
}

void Meter::add(int64_t position, const RowNumbers& row) {
  Row measured = measure(position, row);
  add(std::span(&measured, 1), nullptr);
}

// Counts and the worst are of all rows, sums of distinct ones alone. Every sum is made by one
// thread, of its rows in their order.
Meter::Added Meter::add_whole(std::span<Row> rows, ThreadPool* threads) {
  constexpr int64_t kShared = 512;  // rows that are worth waking threads for
  if (std::ssize(rows) < kShared) threads = nullptr;
  Added added;
  const bool exact = options_.node_class == NodeClass::exact, pools = pool_ && !exact;
  const auto each = [threads](std::initializer_list<std::function<void()>> parts) {
    parallel_for(threads, std::ssize(parts), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) parts.begin()[part]();
    });
  };
  each({[&] {
          if (!exact) added.distinct = distinct_of(rows);
        },
        [&] {
          if (pools) added.pooled = pool_->add(rows);
        },
        [&] {
          for (Row& row : rows) merge(row);
        }});
  if (exact || rows.empty()) return added;
  const auto heads = std::ssize(rows[0].heads);
  parallel_for(threads, 1 + heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part)
      part == 0 ? add_positions(added.distinct) : add_head(part - 1, added);
  });
  return added;
}

std::vector<const Meter::Row*> Meter::distinct_of(std::span<const Row> rows) {
  std::vector<const Row*> distinct;
  for (const Row& row : rows)
    if (moments_.add(row.hash, row.sum)) distinct.push_back(&row);
  return distinct;
}

void Meter::add_positions(std::span<const Row* const> rows) {
  for (const Row* row : rows) {
    const Measure& of = row->measure;
    rows_[row->position].add(row->sum, of.worst, of.misrounded);
    if (options_.page_size > 0)
      pages_[row->position / options_.page_size].add(row->sum, of.worst, of.misrounded);
  }
}

void Meter::add_head(size_t head, const Added& added) {
  for (const Row* row : added.distinct) heads_[head].add(row->heads[head], row->size);
  if (pool_) pool_->add_head(head, added.pooled);
}

void Meter::add(std::span<Row> rows, ThreadPool* threads) {
  begin_columns();
  const Added added = add_whole(rows, threads);
  std::vector<const WeighedRow*> pooled;
  for (const Row* row : added.pooled) pooled.push_back(&row->elements);
  add_columns(added.distinct, pooled, threads);
}

void Meter::merge(Row& row) {
  Measure& to = measure_;
  const Measure& from = row.measure;
  to.elements += from.elements;
  to.excluded += from.excluded;
  to.different += from.different;
  to.over += from.over;
  to.sum_squares += from.sum_squares;
  to.inner = std::max(to.inner, from.inner);
  to.largest = std::max(to.largest, from.largest);
  for (WrongRow& wrong : row.measure.wrong)
    to.wrong.push_back({rows_added_, std::move(wrong.elements)});
  if (row.any_worst && (!any_worst_ || from.worst.budgets > to.worst.budgets)) {
    to.worst = from.worst;
    any_worst_ = true;
  }
  keep_worse(to.misrounded, from.misrounded);
  to.errors.add(from.errors);
  if (from.nonfinite > to.nonfinite) {
    to.nonfinite = from.nonfinite;
    to.nonfinite_count = from.nonfinite_count;
    to.nonfinite_at = from.nonfinite_at;
  } else if (from.nonfinite == to.nonfinite) {
    to.nonfinite_count += from.nonfinite_count;
  }
  ++rows_added_;
}

// Each column by one thread, its rows in their order.
void Meter::add_columns(std::span<const Row* const> rows, std::span<const WeighedRow* const> pooled,
                        ThreadPool* threads) {
  std::vector<const WeighedRow*> elements;
  for (const Row* row : rows) elements.push_back(&row->elements);
  const size_t columns = pooled.empty() ? columns_.size() : row_size_;
  for_columns(columns, threads, [&](size_t begin, size_t end) {
    if (!pooled.empty()) pool_->add_columns(pooled, begin, end);
    if (columns_.size() == 0) return;
    columns_.add(elements, begin, end);
    keep_worst_of_columns(rows, begin, end);
  });
}

void Meter::keep_worst_of_columns(std::span<const Row* const> rows, size_t begin, size_t end) {
  for (const Row* row : rows) {
    const WeighedRow& elements = row->elements;
    for (size_t i = begin;
         (i = elements.next_worse(most_of_columns_, most_misrounded_of_columns_, i, end)) < end;
         ++i) {
      const Element element = beside_row(element_of(elements, row->position, i), row->size);
      const float budgets = elements.budgets[i];
      if (budgets > most_of_columns_[i])
        most_of_columns_[i] = budgets, worst_of_columns_[i].worst = element;
      if (elements.misrounded[i] > 0 && budgets > most_misrounded_of_columns_[i])
        most_misrounded_of_columns_[i] = budgets, worst_of_columns_[i].misrounded = element;
    }
  }
}

}  // namespace lockstep
