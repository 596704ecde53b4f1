// Budgets, then the sums of rows, heads and columns, an op of LibTorch a step over all rows at
// once: what budget_loops.cc of src/judge and row_loops.cc and error_sums.cc of src/stats make of
// one element after the other. Where a row has an element that is not plain or comes near its
// budget nothing is said, and the judge looks at each.
#include "reference/measured_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/signbit.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <tuple>
#include <utility>

#include "reference/bridge.h"
#include "reference/own_errors.h"
#include "src/stats/distant_rows.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

// Nearer to its budget another rounding of the quotient may decide.
constexpr double kSurelyWithin = 1 - 0x1p-40;

// The distance of neighbours around x, of numbers that are finite.
at::Tensor spacing_around(const at::Tensor& x, const FloatFormat& format) {
  const at::Tensor powers =
      x.view(at::kLong).bitwise_and(int64_t{0x7ff0000000000000}).view(at::kDouble);
  return powers.clamp_min(std::ldexp(1.0, format.min_exponent)) *
         std::ldexp(1.0, 1 - format.precision);
}

// The chance that a result is another number than its exact one rounded where many lie on the
// border of two (budget.cc, turned).
at::Tensor turned_chance(const at::Tensor& want, const at::Tensor& spacing, const at::Tensor& inner,
                         const at::Tensor& chance) {
  const at::Tensor at = want.abs() / spacing;
  const at::Tensor distance = (at - at.floor() - 0.5).abs();
  const at::Tensor turning = 0.5 * (distance / (chance * std::sqrt(std::numbers::pi))).erfc();
  const at::Tensor as_it_is = (chance > 0.1) | (distance * spacing <= kOracleError * inner) |
                              (chance <= 0) | ((chance > 1e-15) & (distance > 11 * chance));
  return at::where(as_it_is, chance, at::maximum(chance, turning));
}

// The amounts that elements add to their slices (WeighedRow), each [rows, columns].
struct InSlices {
  at::Tensor want, got;
  at::Tensor unit, due, budgets, may_misround;  // fp32
  at::Tensor misrounded;                        // whether
};

// Tensors of one shape, one after the other in host memory.
class Table {
 public:
  explicit Table(const std::vector<at::Tensor>& columns) {
    std::vector<at::Tensor> wide;
    for (const at::Tensor& column : columns) wide.push_back(column.to(at::kDouble));
    held_ = std::make_shared<const at::Tensor>(on_host(at::stack(wide)));
    values_ = held_->const_data_ptr<double>();
    count_ = columns.empty() ? 0 : columns[0].numel();
  }
  double at(size_t column, int64_t i) const {
    return values_[static_cast<int64_t>(column) * count_ + i];
  }
  int64_t count_of(size_t column, int64_t i) const { return std::llrint(at(column, i)); }

 private:
  std::shared_ptr<const at::Tensor> held_;
  const double* values_ = nullptr;  // of it
  int64_t count_ = 0;
};

// The sum over the last axis.
at::Tensor totals(const at::Tensor& x) { return x.sum({-1}, /*keepdim=*/false, at::kDouble); }

// The largest along an axis, and the first place that has it; none where all are below 0.
struct Largest {
  Largest(const at::Tensor& x, int64_t axis) {
    std::tie(value, at) = x.max(axis);
    at = at::where(value < 0, at::full_like(at, -1), at);
  }
  // The entries of x there, where there is one.
  at::Tensor of(const at::Tensor& x, int64_t axis) const {
    return x.gather(axis, at.clamp_min(0).unsqueeze(axis)).squeeze(axis);
  }
  at::Tensor value, at;
};

// `x` where `chosen`, else -1.
at::Tensor only(const at::Tensor& chosen, const at::Tensor& x) {
  return x.masked_fill(~chosen, -1);
}

// The columns of the tables that come to the host, of rows, of groups in them, and of columns. A
// number that counts or names a place is exact in fp64 as well.
enum OfRow : size_t {
  kPower,
  kLargestGot,
  kEtaSquares,
  kInner,
  kMostBudgets,
  kWorst,
  kWorstWant,
  kWorstGot,
  kMostDiffering,
  kWorstDiffering,
  kDifferingWant,
  kDifferingGot,
  kDiffering,
  kCompared,
  kNotClose,
  kPropagated,
  kTotal,
  kFloor,
  kHash,
  kUnits,
  kDue,
  kMay,
  kPowerByV,
  kOffset,
  kCross,
  kScatter
};
enum OfGroup : size_t {
  kGroupUnits,
  kGroupDue,
  kGroupMisrounded,
  kGroupMay,
  kGroupShared,
  kGroupSquares,
  kGroupCross,
  kGroupMost,
  kGroupWorst,
  kGroupWant,
  kGroupGot,
  kGroupMostMisrounded,
  kGroupWorstMisrounded,
  kGroupWantMisrounded,
  kGroupGotMisrounded
};
enum OfColumn : size_t {
  kColumnUnits,
  kColumnDue,
  kColumnMisrounded,
  kColumnMay,
  kColumnMost,
  kColumnRow,
  kColumnWant,
  kColumnGot,
  kColumnMostMisrounded,
  kColumnRowMisrounded,
  kColumnWantMisrounded,
  kColumnGotMisrounded
};

// Sums over rows in fp64, of amounts in fp32 as ColumnSums has them.
DistantColumns columns_of(const InSlices& e) {
  const auto sum = [](const at::Tensor& x) { return x.sum({0}, /*keepdim=*/false, at::kDouble); };
  const Largest worst(e.budgets, 0), misrounded(only(e.misrounded, e.budgets), 0);
  const Table table({sum(e.unit), sum(e.due), sum(e.misrounded), sum(e.may_misround), worst.value,
                     worst.at, worst.of(e.want, 0), worst.of(e.got, 0), misrounded.value,
                     misrounded.at, misrounded.of(e.want, 0), misrounded.of(e.got, 0)});
  DistantColumns columns;
  const auto worst_at = [&](int64_t i, size_t first) {
    return DistantColumns::Worst{table.count_of(first + 1, i), table.at(first + 2, i),
                                 table.at(first + 3, i), to_f32(table.at(first, i))};
  };
  for (int64_t i = 0; i < e.want.size(1); ++i) {
    columns.elements.push_back(static_cast<double>(e.want.size(0)));
    columns.squares.push_back(table.at(kColumnUnits, i));
    columns.due.push_back(table.at(kColumnDue, i));
    columns.misrounded.push_back(table.at(kColumnMisrounded, i));
    columns.may_misround.push_back(table.at(kColumnMay, i));
    columns.worst.push_back(worst_at(i, kColumnMost));
    columns.worst_misrounded.push_back(worst_at(i, kColumnMostMisrounded));
  }
  return columns;
}

// Rows that were measured, and their elements where they are.
class MeasuredRows final : public DistantRows {
 public:
  // groups: of a row; 0: none are asked for.
  MeasuredRows(Table rows, Table of_groups, int64_t groups, InSlices elements, int64_t width)
      : rows_(std::move(rows)),
        groups_(std::move(of_groups)),
        group_count_(groups),
        width_(width),
        elements_(std::move(elements)) {
    if (elements_.want.defined()) columns_ = columns_of(elements_);
  }

  DistantRow row(size_t i) const override;
  DistantColumns columns(std::span<const int64_t> rows) const override;

 private:
  Table rows_, groups_;
  int64_t group_count_, width_;
  InSlices elements_;       // undefined: of class exact
  DistantColumns columns_;  // of all rows
};

// The tables are in host memory since the rows were measured, and nothing is waited for here.
DistantRow MeasuredRows::row(size_t row) const {
  const auto i = static_cast<int64_t>(row);
  const auto of = [&](OfRow what) { return rows_.at(what, i); };
  DistantRow result;
  result.worst = {rows_.count_of(kWorst, i), of(kWorstWant), of(kWorstGot)};
  result.misrounded = {rows_.count_of(kWorstDiffering, i), of(kDifferingWant), of(kDifferingGot)};
  result.compared = {.compared = rows_.count_of(kCompared, i),
                     .propagated = of(kPropagated),
                     .total = of(kTotal),
                     .floor = of(kFloor),
                     .not_close = rows_.count_of(kNotClose, i)};
  result.sums = {.plain = true,
                 .power = of(kPower),
                 .largest = of(kLargestGot),
                 .squares = of(kEtaSquares),
                 .inner = of(kInner),
                 .most = of(kMostBudgets),
                 .most_differing = of(kMostDiffering),
                 .over = 0,
                 .different = rows_.count_of(kDiffering, i)};
  if (!elements_.want.defined()) return result;
  result.hash = std::bit_cast<uint64_t>(of(kHash));
  Moments& sum = result.moments;
  sum.elements = width_;
  sum.squares = of(kUnits), sum.due = of(kDue), sum.may_misround = of(kMay);
  sum.misrounded = result.sums.different;
  sum.power = of(kPowerByV), sum.offset = of(kOffset), sum.cross = of(kCross);
  sum.cross_scatter = of(kScatter);
  for (int64_t g = i * group_count_; g < (i + 1) * group_count_; ++g) {
    const int64_t first = (g - i * group_count_) * (width_ / group_count_);
    const auto in = [&](OfGroup what) { return groups_.at(what, g); };
    const auto worst = [&](OfGroup where, OfGroup want, OfGroup got) {
      const int64_t at = groups_.count_of(where, g);
      return DistantRow::Worst{at < 0 ? at : first + at, in(want), in(got)};
    };
    result.groups.push_back(
        {.sums = {.scatter = {.elements = width_ / group_count_,
                              .squares = in(kGroupUnits),
                              .due = in(kGroupDue),
                              .misrounded = groups_.count_of(kGroupMisrounded, g),
                              .may_misround = in(kGroupMay)},
                  .sum = in(kGroupShared),
                  .squares = in(kGroupSquares),
                  .cross = in(kGroupCross),
                  .most = to_f32(in(kGroupMost)),
                  .most_misrounded = to_f32(in(kGroupMostMisrounded))},
         .worst = worst(kGroupWorst, kGroupWant, kGroupGot),
         .misrounded = worst(kGroupWorstMisrounded, kGroupWantMisrounded, kGroupGotMisrounded)});
  }
  return result;
}

// Mostly all rows differ from each other and are asked for together, which was done beforehand; the
// few that a pool leaves out of a long run, or that are equal, are chosen where they are.
DistantColumns MeasuredRows::columns(std::span<const int64_t> rows) const {
  if (std::ssize(rows) == elements_.want.size(0)) return columns_;
  DistantColumns result;
  in_torch([&] {
    const at::Tensor numbers =
        at::from_blob(const_cast<int64_t*>(rows.data()), {std::ssize(rows)}, at::kLong)
            .to(elements_.want.device(), /*non_blocking=*/false, /*copy=*/true);
    const auto some = [&](const at::Tensor& x) { return x.index_select(0, numbers); };
    const InSlices& e = elements_;
    result = columns_of({some(e.want), some(e.got), some(e.unit), some(e.due), some(e.budgets),
                         some(e.may_misround), some(e.misrounded)});
  });
  for (auto* worst : {&result.worst, &result.worst_misrounded})
    for (DistantColumns::Worst& of : *worst)
      if (of.row >= 0) of.row = rows[static_cast<size_t>(of.row)];
  return result;
}

// Elements beside what the dtype makes of their exact results (StoredRow), [rows, columns].
struct Beside {
  at::Tensor want, got, spacing, limit, variance, misround, shared;
};

// own: the error before the last rounding, of `limit`, `variance` and `shared`.
Beside with_budgets(const RowsToMeasure& rows, const Exact& exact, const Beside& own) {
  const at::Tensor want = tensor_of(exact.want);
  const std::vector<int64_t> table = {rows.got.rows(), rows.got.row_size()};
  const auto shaped = [&](const at::Tensor& x) { return x.reshape(table); };
  const FloatFormat format = format_of(rows.dtype);
  Beside e{.want = shaped(want).contiguous(),
           .got = as_dtype(to_torch(rows.got).to(want.device()), DType::f64).reshape(table)};
  e.spacing = spacing_around(e.want, format);
  const at::Tensor limit = shaped(own.limit), variance = shaped(own.variance);
  if (own.shared.defined()) e.shared = shaped(own.shared);
  // The steps of add_rounding() of src/judge/budget_loops.cc.
  e.misround = (variance.sqrt() / e.spacing).clamp_max(rows.misrounds).clamp_max(1);
  e.limit = spacing_around(e.want.abs() + limit, format) / 2 + limit;
  e.variance = e.spacing * e.spacing / 12 + variance;
  if (rows.meets_borders)
    e.misround = turned_chance(e.want, e.spacing, e.limit - e.spacing / 2, e.misround).clamp_max(1);
  return e;
}

// The sums that ErrorSums::add_row() of src/stats/error_sums.cc makes of each row.
std::vector<at::Tensor> compared(const Beside& e, const RowsToMeasure& rows) {
  if (!rows.exact.tensor || !rows.rounded.tensor)
    return std::vector<at::Tensor>(5, at::zeros({e.want.size(0)}, e.want.options()));
  const auto of_model = [&](const HeldRows& held) {
    const auto& all = *static_cast<const at::Tensor*>(held.tensor.get());
    return as_dtype(all.narrow(0, held.first, e.want.size(0)), DType::f64).reshape(e.want.sizes());
  };
  const at::Tensor exact = of_model(rows.exact), rounded = of_model(rows.rounded);
  const double relative = rows.dtype == DType::f32   ? 1.3e-6
                          : rows.dtype == DType::f16 ? 1e-3
                                                     : 1.6e-2;
  const at::Tensor close = (e.got - rounded).abs() <= 1e-5 + relative * rounded.abs();
  const at::Tensor total = e.got - exact, propagated = e.want - exact, floor = rounded - exact;
  const auto finite = [](const at::Tensor& x) {
    return x.abs() < std::numeric_limits<double>::infinity();
  };
  const at::Tensor known = finite(total) & finite(propagated) & finite(floor);
  const auto squares = [&](const at::Tensor& x) {
    return totals(x.square().masked_fill(~known, 0));
  };
  return {totals(known), totals(~close), squares(propagated), squares(total), squares(floor)};
}

// hash_of_row() of src/stats/row_loops.h. The bits of each sum, as a number of fp64 that nobody
// computes with.
at::Tensor hashes_of(const Beside& e) {
  std::vector<int64_t> factors;
  for (int64_t i = 0; i < e.want.size(1); ++i)
    factors.push_back(std::bit_cast<int64_t>(hash_factor(static_cast<uint64_t>(i))));
  const at::Tensor of_columns = at::from_blob(factors.data(), {std::ssize(factors)}, at::kLong)
                                    .to(e.want.device(), /*non_blocking=*/false, /*copy=*/true);
  constexpr int64_t kLow = 0xffffffff;
  const auto bits = [](const at::Tensor& x) {
    return x.to(at::kFloat).view(at::kInt).to(at::kLong);
  };
  const at::Tensor both =
      bits(e.want).bitwise_left_shift(32).bitwise_or(bits(e.got).bitwise_and(kLow));
  const at::Tensor term = both * of_columns;
  return term.bitwise_xor(term.bitwise_right_shift(32).bitwise_and(kLow)).sum(-1).view(at::kDouble);
}

// The sums of each group of `size` neighbours.
Table table_of_groups(const Beside& e, const InSlices& in, const at::Tensor& over_v,
                      const at::Tensor& term, int64_t size) {
  const auto grouped = [&](const at::Tensor& x) { return x.reshape({-1, size}); };
  const at::Tensor f = e.shared.defined() ? grouped(e.shared * over_v) : at::Tensor();
  const at::Tensor g_budgets = grouped(in.budgets);
  const Largest g_worst(g_budgets, 1), g_misrounded(only(grouped(in.misrounded), g_budgets), 1);
  const at::Tensor g_want = grouped(e.want), g_got = grouped(e.got);
  const at::Tensor none = at::zeros_like(g_worst.value);
  return Table({totals(grouped(in.unit)), totals(grouped(in.due)), totals(grouped(in.misrounded)),
                totals(grouped(in.may_misround)), f.defined() ? totals(f) : none,
                f.defined() ? totals(f.square()) : none, f.defined() ? totals(grouped(term)) : none,
                g_worst.value, g_worst.at, g_worst.of(g_want, 1), g_worst.of(g_got, 1),
                g_misrounded.value, g_misrounded.at, g_misrounded.of(g_want, 1),
                g_misrounded.of(g_got, 1)});
}

// StoredRow::rounded.
at::Tensor rounded_of(const Beside& e, const RowsToMeasure& rows) {
  const at::Tensor shift = 0x1.8p52 * e.spacing, half = e.spacing / 2;
  const at::Tensor nearest = ((e.want + shift) - shift).copysign(e.want);
  if (!rows.meets_borders || rows.is_exact) return nearest;
  const at::Tensor unseen = kOracleError * (e.limit - half);
  const at::Tensor to_border = (half - (nearest - e.want).abs()).abs();
  const at::Tensor beyond = (e.got - e.want).abs() - half;
  return at::where((to_border <= unseen) & (beyond <= unseen), e.got, nearest);
}

// Elements, rows and groups are weighed as look_at_row(), weigh_row() and sum_group() do.
std::shared_ptr<const DistantRows> measured(const Beside& e, const RowsToMeasure& rows) {
  const double largest = format_of(rows.dtype).max;
  const at::Tensor half = e.spacing / 2, room = e.limit - half, rounded = rounded_of(e, rows);
  const at::Tensor eta = e.got - e.want, size = eta.abs(), budgets = size / e.limit;
  const at::Tensor over_v = e.variance.reciprocal();
  // Written so that NaN is not plain.
  const at::Tensor plain = (e.want.abs() < largest) & (rounded.abs() <= largest) &
                           (e.got.abs() < largest) & (e.limit > 0) & (over_v > 0) &
                           (over_v < std::numeric_limits<double>::infinity()) &
                           (budgets <= (rows.is_exact ? 1 : kSurelyWithin));
  at::Tensor differs = e.got != rounded;
  if (rows.is_exact) differs = differs | (at::signbit(e.got) != at::signbit(rounded));
  if (!(rows.is_exact ? plain & ~differs : plain).all().item<bool>()) return nullptr;
  // Each sum and maximum of a row is one pass over all rows.
  const at::Tensor inner = ((size - half) / room).masked_fill(room <= 0, 0).clamp_min(0);
  const Largest worst(budgets, 1), misrounded(only(differs, budgets), 1);
  std::vector<at::Tensor> of_rows = {totals(e.want.square()),
                                     e.got.abs().amax(1),
                                     totals(eta.square()),
                                     inner.amax(1),
                                     worst.value,
                                     worst.at,
                                     worst.of(e.want, 1),
                                     worst.of(e.got, 1),
                                     misrounded.value,
                                     misrounded.at,
                                     misrounded.of(e.want, 1),
                                     misrounded.of(e.got, 1),
                                     totals(differs)};
  for (const at::Tensor& sums : compared(e, rows)) of_rows.push_back(sums);
  const int64_t width = e.want.size(1);
  if (rows.is_exact)
    return std::make_shared<MeasuredRows>(Table(of_rows), Table({of_rows[0]}), 0, InSlices(),
                                          width);
  const at::Tensor unit = eta * eta * over_v, rest = rounded - e.want, delta = e.got - rounded;
  const at::Tensor due = (rest * rest - e.spacing * e.spacing / 12) * over_v;
  const at::Tensor term = delta * e.want * over_v;
  for (const at::Tensor& sums :
       {hashes_of(e), totals(unit), totals(due), totals(e.misround),
        totals(e.want * e.want * over_v), totals(delta * over_v.sqrt()), totals(term),
        e.shared.defined() ? at::zeros_like(worst.value) : totals(term.square())})
    of_rows.push_back(sums);
  // Slices are summed from what fp32 has of each element, as on the host.
  const auto narrow = [](const at::Tensor& x) { return x.to(at::kFloat); };
  InSlices in{e.want, e.got, narrow(unit), narrow(due), narrow(budgets), narrow(e.misround),
              differs};
  const bool heads = rows.got.shape.rank() == 3;
  const int64_t groups = heads ? rows.got.shape[1] : e.shared.defined() ? 1 : 0;
  if (groups == 0)
    return std::make_shared<MeasuredRows>(Table(of_rows), Table({of_rows[0]}), 0, std::move(in),
                                          width);
  Table of_groups = table_of_groups(e, in, over_v, term, width / groups);
  return std::make_shared<MeasuredRows>(Table(of_rows), std::move(of_groups), groups, std::move(in),
                                        width);
}

}  // namespace

void measure_rows(OpKind op, const RowsToMeasure& rows, Exact& exact) {
  if (exact.shape != rows.got.shape || rows.dtype == DType::f64) return;
  Beside own;
  if (!own_errors(op, exact, own.limit, own.variance, own.shared)) return;
  std::shared_ptr<const DistantRows> found = measured(with_budgets(rows, exact, own), rows);
  if (!found) return;
  // The magnitudes stay where they are, and are let go: to copy them takes longer than all else.
  exact = {.contract = exact.contract,
           .shape = exact.shape,
           .want = rows.brings ? std::move(exact.want) : Numbers{},
           .terms = exact.terms,
           .row_terms = std::move(exact.row_terms),
           .serial_error = std::move(exact.serial_error),
           .measured = std::move(found)};
}

}  // namespace lockstep
