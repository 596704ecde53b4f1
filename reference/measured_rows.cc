// Budgets, then the sums of rows, heads and columns, an op of LibTorch a step over all rows at
// once: what src/judge/ops, budget_loops.cc and src/stats/row_loops.cc make of one element after
// the other. Where a row has an element that is not plain or comes near its budget nothing is said,
// and the judge looks at each.
#include "reference/measured_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/signbit.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <tuple>
#include <utility>

#include "reference/bridge.h"
#include "src/judge/contracts.h"
#include "src/stats/distant_rows.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

constexpr double kUnit = kAccumulatorRoundoff;
// Nearer to its budget another rounding of the quotient may decide.
constexpr double kSurelyWithin = 1 - 0x1p-40;

// The error before the last rounding (JudgedOp::InnerError), in the shape of the result.
struct OwnErrors {
  at::Tensor limit, variance;
  at::Tensor shared;  // undefined: none
};

// Numbers that the host has, one a row, beside a tensor that is elsewhere: [rows, 1].
at::Tensor column_of(const std::vector<double>& values, const at::Tensor& like) {
  return at::from_blob(const_cast<double*>(values.data()), {std::ssize(values), 1}, at::kDouble)
      .to(like.device(), /*non_blocking=*/false, /*copy=*/true);
}

// The formulas of the files in src/judge/ops that are named as the op, with the reasons for them,
// are these; a test holds the two together, element by element. What is one number a row is made on
// the host, so that it is the same number.
OwnErrors errors_of_sum(const Exact& e) {
  const auto n = static_cast<double>(e.terms);
  const at::Tensor size = kUnit * tensor_of(e.magnitude);
  return {kLambda * std::sqrt(n) * size, (walk_of(n) * size).square(), {}};
}

// Rows of one scale: a head's, of the norms of queries and keys.
OwnErrors errors_of_norm(const Exact& e) {
  const at::Tensor size = kUnit * tensor_of(e.want).abs();
  const auto n = static_cast<double>(e.terms);
  const double walk = walk_of(n) / 2 + 3;
  at::Tensor of_rows = walk * size;
  if (!e.serial_error.empty()) {
    std::vector<double> deviations;
    for (const double error : e.serial_error) deviations.push_back(std::hypot(walk, error / 2));
    of_rows = column_of(deviations, size) * size.reshape({std::ssize(deviations), -1});
  }
  const at::Tensor shared = of_rows.square();
  return {(kLambda * std::sqrt(n) / 2 + 8) * size, shared, shared};
}

OwnErrors errors_of_rope(const Exact& e) {
  const at::Tensor size = tensor_of(e.want).abs(), turned = tensor_of(e.turned);
  const at::Tensor most = 4 * tensor_of(e.angle) * kUnit;
  const at::Tensor square = 3 * (tensor_of(e.angle) * kUnit).square();
  return {4 * kUnit * tensor_of(e.magnitude) + (most * turned + most.square() / 2 * size),
          (0.85 * kUnit * tensor_of(e.x1c_x2s)).square() +
              (square * turned.square() + 0.75 * (square * size).square()),
          {}};
}

OwnErrors errors_of_silu_mul(const Exact& e) {
  const at::Tensor size = kUnit * tensor_of(e.want).abs(), of_sigmoid = tensor_of(e.magnitude);
  const at::Tensor underflow = 88 * kLeastNormal * tensor_of(e.factor).abs();
  return {16 * size + kUnit * of_sigmoid + underflow,
          (3 * size).square() + (0.3 * kUnit * of_sigmoid).square() + underflow.square(),
          {}};
}

// Each head has a score and each row a number of keys; all else is an element's.
OwnErrors errors_of_attention(const Exact& e) {
  const int64_t dim = e.shape.last(), heads = e.shape[1];
  const auto width = static_cast<double>(dim);
  const auto by_heads = [dim](const Numbers& x) { return tensor_of(x).reshape({-1, dim}); };
  const at::Tensor o = by_heads(e.want).abs(), score = tensor_of(e.score).reshape({-1, 1});
  std::vector<double> terms, logarithms;
  for (const double n : e.row_terms)
    for (int64_t head = 0; head < heads; ++head)
      terms.push_back(n), logarithms.push_back(std::log(n));
  const at::Tensor n = column_of(terms, o);
  const at::Tensor ds = std::sqrt(width) * kUnit * score + 4 * kUnit;
  const at::Tensor es = (walk_of(width) + 1) * kUnit * score + 4 * kUnit;
  const at::Tensor shared = es.square() * by_heads(e.spread_squares) +
                            ((2 + score + column_of(logarithms, o)) * kUnit * o).square();
  const at::Tensor sum = 2 * kUnit * kUnit * n * (o * o / 9 + by_heads(e.weighted_squares) / 6);
  return {
      2 * kLambda * ds * by_heads(e.spread) + kLambda * n.sqrt() * kUnit * by_heads(e.magnitude),
      shared + sum, shared};
}

// Nothing: of another op, or of a chain with roundings on the way.
std::optional<OwnErrors> own_errors(OpKind op, const Exact& e) {
  if (!e.steps.empty() || !e.ties.empty()) return std::nullopt;
  switch (op) {
    case OpKind::gather:
    case OpKind::add: {
      const at::Tensor none = at::zeros_like(tensor_of(e.want));
      return OwnErrors{none, none, {}};
    }
    case OpKind::linear:
      return errors_of_sum(e);
    case OpKind::norm:
      return errors_of_norm(e);
    case OpKind::rope:
      return errors_of_rope(e);
    case OpKind::silu_mul:
      return errors_of_silu_mul(e);
    case OpKind::attention:
      if (rounds_weights(e.contract)) return std::nullopt;
      return errors_of_attention(e);
    default:
      return std::nullopt;
  }
}

// The distance of neighbours around x, of numbers that are finite.
at::Tensor spacing_around(const at::Tensor& x, const FloatFormat& format) {
  const at::Tensor powers =
      x.view(at::kLong).bitwise_and(int64_t{0x7ff0000000000000}).view(at::kDouble);
  return powers.clamp_min(std::ldexp(1.0, format.min_exponent)) *
         std::ldexp(1.0, 1 - format.precision);
}

// The chance that a norm's result is another number than its exact one rounded (budget.cc, turned).
at::Tensor turned_chance(const at::Tensor& want, const at::Tensor& spacing,
                         const at::Tensor& chance) {
  const at::Tensor at = want.abs() / spacing;
  const at::Tensor distance = (at - at.floor() - 0.5).abs();
  const at::Tensor turning = 0.5 * (distance / (chance * std::sqrt(std::numbers::pi))).erfc();
  const at::Tensor as_it_is =
      (chance > 0.1) | (chance <= 0) | ((chance > 1e-15) & (distance > 11 * chance));
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
    count_ = columns.empty() ? 0 : columns[0].numel();
  }
  double at(size_t column, int64_t i) const {
    return held_->const_data_ptr<double>()[static_cast<int64_t>(column) * count_ + i];
  }
  int64_t count_of(size_t column, int64_t i) const { return std::llrint(at(column, i)); }

 private:
  std::shared_ptr<const at::Tensor> held_;
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
  kMostDiffering,
  kWorstDiffering,
  kDiffering,
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
  kGroupMostMisrounded,
  kGroupWorstMisrounded
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
  const auto of = [](const at::Tensor& x, const Largest& at) {
    return x.gather(0, at.at.clamp_min(0).unsqueeze(0)).squeeze(0);
  };
  const Table table({sum(e.unit), sum(e.due), sum(e.misrounded), sum(e.may_misround), worst.value,
                     worst.at, of(e.want, worst), of(e.got, worst), misrounded.value, misrounded.at,
                     of(e.want, misrounded), of(e.got, misrounded)});
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
  result.worst = rows_.count_of(kWorst, i);
  result.misrounded = rows_.count_of(kWorstDiffering, i);
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
  Moments& sum = result.moments;
  sum.elements = width_;
  sum.squares = of(kUnits), sum.due = of(kDue), sum.may_misround = of(kMay);
  sum.misrounded = result.sums.different;
  sum.power = of(kPowerByV), sum.offset = of(kOffset), sum.cross = of(kCross);
  sum.cross_scatter = of(kScatter);
  for (int64_t g = i * group_count_; g < (i + 1) * group_count_; ++g) {
    const int64_t first = (g - i * group_count_) * (width_ / group_count_);
    const auto place = [&](OfGroup what) {
      const int64_t at = groups_.count_of(what, g);
      return at < 0 ? at : first + at;
    };
    const auto in = [&](OfGroup what) { return groups_.at(what, g); };
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
         .worst = place(kGroupWorst),
         .misrounded = place(kGroupWorstMisrounded)});
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

Beside with_budgets(OpKind op, const RowsToMeasure& rows, const Exact& exact,
                    const OwnErrors& own) {
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
  if (op == OpKind::norm) e.misround = turned_chance(e.want, e.spacing, e.misround).clamp_max(1);
  return e;
}

// Elements, rows and groups are weighed as look_at_row(), weigh_row() and sum_group() do.
std::shared_ptr<const DistantRows> measured(const Beside& e, const RowsToMeasure& rows) {
  const double largest = format_of(rows.dtype).max;
  const at::Tensor shift = 0x1.8p52 * e.spacing, half = e.spacing / 2;
  const at::Tensor rounded = ((e.want + shift) - shift).copysign(e.want);
  const at::Tensor eta = e.got - e.want, size = eta.abs(), budgets = size / e.limit;
  const at::Tensor over_v = e.variance.reciprocal();
  // Written so that NaN is not plain.
  const at::Tensor plain = (e.want.abs() < largest) & (rounded.abs() <= largest) &
                           (e.got.abs() < largest) & (e.limit > 0) & (over_v > 0) &
                           (over_v < std::numeric_limits<double>::infinity()) &
                           (budgets <= (rows.exact ? 1 : kSurelyWithin));
  at::Tensor differs = e.got != rounded;
  if (rows.exact) differs = differs | (at::signbit(e.got) != at::signbit(rounded));
  if (!(rows.exact ? plain & ~differs : plain).all().item<bool>()) return nullptr;
  // Each sum and maximum of a row is one pass over all rows.
  const at::Tensor room = e.limit - half;
  const at::Tensor inner = ((size - half) / room).masked_fill(room <= 0, 0).clamp_min(0);
  const Largest worst(budgets, 1), misrounded(only(differs, budgets), 1);
  std::vector<at::Tensor> of_rows = {
      totals(e.want.square()), e.got.abs().amax(1), totals(eta.square()),
      inner.amax(1),           worst.value,         worst.at,
      misrounded.value,        misrounded.at,       totals(differs)};
  const int64_t width = e.want.size(1);
  if (rows.exact)
    return std::make_shared<MeasuredRows>(Table(of_rows), Table({of_rows[0]}), 0, InSlices(),
                                          width);
  const at::Tensor unit = eta * eta * over_v, rest = rounded - e.want, delta = e.got - rounded;
  const at::Tensor due = (rest * rest - e.spacing * e.spacing / 12) * over_v;
  const at::Tensor term = delta * e.want * over_v;
  for (const at::Tensor& sums :
       {totals(unit), totals(due), totals(e.misround), totals(e.want * e.want * over_v),
        totals(delta * over_v.sqrt()), totals(term),
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
  const auto grouped = [&](const at::Tensor& x) { return x.reshape({-1, width / groups}); };
  const at::Tensor f = e.shared.defined() ? grouped(e.shared * over_v) : at::Tensor();
  const at::Tensor g_budgets = grouped(in.budgets);
  const Largest g_worst(g_budgets, 1), g_misrounded(only(grouped(differs), g_budgets), 1);
  const at::Tensor none = at::zeros_like(g_worst.value);
  Table of_groups({totals(grouped(in.unit)), totals(grouped(in.due)), totals(grouped(differs)),
                   totals(grouped(in.may_misround)), f.defined() ? totals(f) : none,
                   f.defined() ? totals(f.square()) : none,
                   f.defined() ? totals(grouped(term)) : none, g_worst.value, g_worst.at,
                   g_misrounded.value, g_misrounded.at});
  return std::make_shared<MeasuredRows>(Table(of_rows), std::move(of_groups), groups, std::move(in),
                                        width);
}

}  // namespace

void measure_rows(OpKind op, const RowsToMeasure& rows, Exact& exact) {
  if (exact.shape != rows.got.shape || rows.dtype == DType::f64) return;
  const std::optional<OwnErrors> own = own_errors(op, exact);
  if (!own) return;
  std::shared_ptr<const DistantRows> found = measured(with_budgets(op, rows, exact, *own), rows);
  if (!found) return;
  // The magnitudes stay where they are, and are let go: to copy them takes longer than all else.
  exact = {.contract = exact.contract,
           .shape = exact.shape,
           .want = std::move(exact.want),
           .terms = exact.terms,
           .row_terms = std::move(exact.row_terms),
           .serial_error = std::move(exact.serial_error),
           .measured = std::move(found)};
}

}  // namespace lockstep
