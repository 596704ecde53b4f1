// Budgets, then the sums of rows, heads and columns, an op of LibTorch a step over all rows at
// once: what budget_loops.cc of src/judge and row_loops.cc and error_sums.cc of src/stats make of
// one element after the other. Where a row has an element that is not plain or comes near its
// budget nothing is said, and the judge looks at each.
#include "reference/measured_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/signbit.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "reference/bridge.h"
#include "reference/measure_kernels.h"
#include "reference/measured_columns.h"
#include "reference/own_errors.h"
#include "reference/own_stream.h"
#include "reference/rounded_rows.h"
#include "src/stats/distant_rows.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

// The amounts that elements add to their slices, each [rows, columns].
struct InSlices {
  at::Tensor want, got;                         // got: of any dtype
  at::Tensor unit, due, budgets, may_misround;  // fp32
  at::Tensor misrounded;                        // whether

  AmountsOfRows amounts() const {
    return {want, got, unit, due, budgets, may_misround, misrounded};
  }
};

// The sum over the last axis.
at::Tensor totals(const at::Tensor& x) { return x.sum({-1}, /*keepdim=*/false, at::kDouble); }

// The columns of rows that are asked for together.
struct ColumnsOfRows {
  RowRange rows;
  std::shared_ptr<const DistantColumns> columns;
};

// Rows that were measured, and their elements where they are.
class MeasuredRows final : public DistantRows {
 public:
  // groups: of a row; 0: none are asked for.
  MeasuredRows(Table rows, Table of_groups, int64_t groups, InSlices elements, int64_t width,
               std::vector<ColumnsOfRows> columns = {})
      : rows_(std::move(rows)),
        groups_(std::move(of_groups)),
        group_count_(groups),
        width_(width),
        elements_(std::move(elements)),
        columns_(std::move(columns)) {}

  void put_row(size_t i, DistantRow& into) const override;
  std::shared_ptr<const DistantColumns> columns(std::span<const int64_t> rows) const override;

 private:
  Table rows_, groups_;
  int64_t group_count_, width_;
  InSlices elements_;                   // undefined: of class exact
  std::vector<ColumnsOfRows> columns_;  // that were summed beforehand
};

// The tables are in host memory since the rows were measured, and nothing is waited for here.
void MeasuredRows::put_row(size_t row, DistantRow& result) const {
  const auto i = static_cast<int64_t>(row);
  const auto of = [&](OfRow what) { return rows_.at(what, i); };
  result.groups.clear();
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
  if (!elements_.want.defined()) return;
  result.hash = std::bit_cast<uint64_t>(of(kHash));
  Moments& sum = result.moments = {};
  sum.elements = width_;
  sum.squares = of(kUnits), sum.due = of(kDue), sum.may_misround = of(kMay);
  sum.misrounded = rows_.count_of(kUsualMisrounds, i);
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
}

// Mostly all rows of a node differ from each other and are asked for together, which was done
// beforehand; the few that a pool leaves out of a long run, or that are equal, are chosen where
// they are.
std::shared_ptr<const DistantColumns> MeasuredRows::columns(std::span<const int64_t> rows) const {
  const auto are_those = [&](const ColumnsOfRows& of) {
    return std::ssize(rows) == of.rows.count && rows.front() == of.rows.first &&
           rows.back() == of.rows.first + of.rows.count - 1;
  };
  const auto known = std::ranges::find_if(columns_, are_those);
  if (known != columns_.end()) return known->columns;
  return std::make_shared<const DistantColumns>(columns_of(elements_.amounts(), rows));
}

// Elements beside what the dtype makes of their exact results (StoredRow), [rows, columns].
struct Beside {
  at::Tensor want, got, spacing, limit, variance, misround, shared;
  double usual_misround, misround_in_gain;  // as in RowNumbers
};

// own_errors().
struct Own {
  at::Tensor limit, variance, shared, products;
  double common = 0;
};

Beside with_budgets(const RowsToMeasure& rows, const Exact& exact, const Own& own) {
  const at::Tensor want = tensor_of(exact.want);
  const std::vector<int64_t> table = {rows.got.rows(), rows.got.row_size()};
  const auto shaped = [&](const at::Tensor& x) { return x.reshape(table); };
  const FloatFormat format = format_of(rows.dtype);
  Beside e{.want = shaped(want).contiguous(),
           .got = as_dtype(to_torch(rows.got, want.device()), DType::f64).reshape(table)};
  e.spacing = spacing_around(e.want, format);
  const auto or_none = [&](const at::Tensor& x) {
    return x.defined() ? shaped(x) : at::zeros_like(e.want);
  };
  const at::Tensor limit = or_none(own.limit), variance = or_none(own.variance);
  if (own.shared.defined()) e.shared = shaped(own.shared);
  // The steps of add_rounding() of src/judge/budget_loops.cc.
  e.usual_misround = usual_misround(rows.misrounds, own.common);
  e.misround_in_gain = misround_in_gain(own.products, rows.dtype);
  e.misround = misround_chance(variance.sqrt(), e.spacing, rows.misrounds, own.common);
  e.limit = spacing_around(e.want.abs() + limit, format) / 2 + limit;
  e.variance = e.spacing * e.spacing / 12 + variance;
  const auto turned = [&](const at::Tensor& inner) {
    return turned_chance(e.want, e.spacing, inner, e.misround).clamp_max(1);
  };
  if (rows.meets_borders)
    e.misround = turned(e.limit - e.spacing / 2);
  else if (own.products.defined())
    e.misround = at::where(shaped(own.products), turned(at::zeros_like(e.want)), e.misround);
  return e;
}

// A model's rows.
at::Tensor rows_of(const HeldRows& held, const at::Tensor& like) {
  const auto& all = *static_cast<const at::Tensor*>(held.tensor.get());
  return all.narrow(0, held.first, like.size(0)).reshape(like.sizes());
}

// The sums that ErrorSums::add_row() of src/stats/error_sums.cc makes of each row.
std::vector<at::Tensor> compared(const Beside& e, const RowsToMeasure& rows) {
  if (!rows.exact.tensor || !rows.rounded.tensor)
    return std::vector<at::Tensor>(5, at::zeros({e.want.size(0)}, e.want.options()));
  const at::Tensor exact = as_dtype(rows_of(rows.exact, e.want), DType::f64);
  const at::Tensor rounded = as_dtype(rows_of(rows.rounded, e.want), DType::f64);
  const double relative = closeness_of(rows.dtype);
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

// The sums of each group of `size` neighbours.
Table table_of_groups(const Beside& e, const InSlices& in, const at::Tensor& over_v,
                      const at::Tensor& term, int64_t size) {
  const auto grouped = [&](const at::Tensor& x) { return x.reshape({-1, size}); };
  const at::Tensor f = e.shared.defined() ? grouped(e.shared * over_v) : at::Tensor();
  const at::Tensor none = at::zeros_like(totals(grouped(e.want)));
  std::vector<at::Tensor> of_groups = {totals(grouped(in.unit)),
                                       totals(grouped(in.due)),
                                       totals(grouped(in.misrounded)),
                                       totals(grouped(in.may_misround)),
                                       f.defined() ? totals(f) : none,
                                       f.defined() ? totals(f.square()) : none,
                                       f.defined() ? totals(grouped(term)) : none};
  for (const at::Tensor& budgets : {in.budgets, only(in.misrounded, in.budgets)})
    for (const at::Tensor& x : worst_along(1, grouped(budgets), grouped(e.want), grouped(e.got)))
      of_groups.push_back(x);
  return Table(of_groups);
}

// The groups of a row: heads, or the row where its elements share a part of their variance.
int64_t groups_of(const RowsToMeasure& rows, const at::Tensor& shared) {
  if (rows.is_exact) return 0;
  return rows.got.shape.rank() == 3 ? rows.got.shape[1] : shared.defined() ? 1 : 0;
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
  std::vector<at::Tensor> of_rows = {totals(e.want.square()), e.got.abs().amax(1),
                                     totals(eta.square()), inner.amax(1)};
  for (const at::Tensor& some : {budgets, only(differs, budgets)})
    for (const at::Tensor& x : worst_along(1, some, e.want, e.got)) of_rows.push_back(x);
  of_rows.push_back(totals(differs));
  for (const at::Tensor& sums : compared(e, rows)) of_rows.push_back(sums);
  const int64_t width = e.want.size(1);
  if (rows.is_exact)
    return std::make_shared<MeasuredRows>(Table(of_rows), Table({of_rows[0]}), 0, InSlices(),
                                          width);
  const at::Tensor unit = eta * eta * over_v, rest = rounded - e.want, delta = e.got - rounded;
  const at::Tensor due = (rest * rest - e.spacing * e.spacing / 12) * over_v;
  const at::Tensor moved = delta.masked_fill(e.misround > e.misround_in_gain, 0);
  const at::Tensor term = moved * e.want * over_v;
  const at::Tensor is_usual = e.misround <= e.usual_misround;
  for (const at::Tensor& sums :
       {hashes_of(e.want, e.got), totals(unit), totals(due),
        totals(e.misround.masked_fill(~is_usual, 0)), totals(differs & is_usual),
        totals(e.want * e.want * over_v), totals(moved * over_v.sqrt()), totals(term),
        e.shared.defined() ? at::zeros_like(of_rows[0]) : totals(term.square())})
    of_rows.push_back(sums);
  // Slices are summed from what fp32 has of each element, as on the host.
  const auto narrow = [](const at::Tensor& x) { return x.to(at::kFloat); };
  InSlices in{e.want, e.got, narrow(unit), narrow(due), narrow(budgets), narrow(e.misround),
              differs};
  const int64_t groups = groups_of(rows, e.shared);
  if (groups == 0)
    return std::make_shared<MeasuredRows>(Table(of_rows), Table({of_rows[0]}), 0, std::move(in),
                                          width);
  Table of_groups = table_of_groups(e, in, over_v, term, width / groups);
  return std::make_shared<MeasuredRows>(Table(of_rows), std::move(of_groups), groups, std::move(in),
                                        width);
}

// The tensors that the kernel reads and writes, of some rows.
struct InKernel {
  at::Tensor want, got, limit, variance, shared, products, exact, rounded;
  double common;
  at::Tensor tables;  // of rows, then of groups, then of columns
  InSlices in;

  // Its tables have room for those columns.
  InKernel(const RowsToMeasure& rows, at::Tensor got, std::span<const RowRange> columns,
           const Exact& exact_results, const Own& own);
  RowsToWeigh rows_to_weigh(const RowsToMeasure& rows, int64_t groups) const;
};

InKernel::InKernel(const RowsToMeasure& rows, at::Tensor got_rows,
                   std::span<const RowRange> columns, const Exact& exact_results, const Own& own)
    : common(own.common) {
  const int64_t count = rows.got.rows(), width = rows.got.row_size();
  const auto shaped = [&](const at::Tensor& x) {
    return x.defined() ? x.reshape({count, width}).contiguous() : x;
  };
  // The kernel reads fp32 and bf16.
  const auto stored = [&](const at::Tensor& x) {
    return shaped(x.scalar_type() == at::kBFloat16 ? x : x.to(at::kFloat));
  };
  want = shaped(tensor_of(exact_results.want));
  got = stored(got_rows);
  limit = shaped(own.limit), variance = shaped(own.variance), shared = shaped(own.shared);
  products = shaped(own.products);
  if (rows.exact.tensor && rows.rounded.tensor) {
    exact = shaped(as_dtype(rows_of(rows.exact, want), DType::f64));
    rounded = stored(rows_of(rows.rounded, want));
  }
  tables = at::empty({count * (kRowColumns + kGroupColumns * groups_of(rows, shared)) +
                      std::ssize(columns) * kColumnColumns * width},
                     want.options());
  if (rows.is_exact) return;
  in = {.want = want, .got = got, .misrounded = want.new_empty(want.sizes(), at::kBool)};
  const at::Tensor amounts = want.new_empty({4, count, width}, at::kFloat);
  in.unit = amounts[0], in.due = amounts[1], in.budgets = amounts[2], in.may_misround = amounts[3];
}

RowsToWeigh InKernel::rows_to_weigh(const RowsToMeasure& rows, int64_t groups) const {
  const auto numbers = [](const at::Tensor& x) {
    return x.defined() ? x.const_data_ptr<double>() : nullptr;
  };
  const auto stored = [](const at::Tensor& x) {
    return x.defined() ? StoredNumbers{x.const_data_ptr(), x.scalar_type() == at::kFloat}
                       : StoredNumbers{};
  };
  const auto amounts = [](const at::Tensor& x) {
    return x.defined() ? x.mutable_data_ptr<float>() : nullptr;
  };
  const FloatFormat format = format_of(rows.dtype);
  auto* const of_rows = tables.mutable_data_ptr<double>();
  return {.rows = want.size(0),
          .width = want.size(1),
          .groups = groups,
          .is_exact = rows.is_exact,
          .meets_borders = rows.meets_borders,
          .least = std::ldexp(1.0, format.min_exponent),
          .of_power = std::ldexp(1.0, 1 - format.precision),
          .largest = format.max,
          .misrounds = rows.misrounds,
          .common = common,
          .usual_misround = usual_misround(rows.misrounds, common),
          .misround_in_gain = misround_in_gain(products, rows.dtype),
          .close = closeness_of(rows.dtype),
          .want = numbers(want),
          .got = stored(got),
          .limit = numbers(limit),
          .variance = numbers(variance),
          .shared = numbers(shared),
          .products = products.defined() ? products.const_data_ptr<bool>() : nullptr,
          .exact = numbers(exact),
          .rounded = stored(rounded),
          .of_rows = of_rows,
          .of_groups = of_rows + kRowColumns * want.size(0),
          .unit = amounts(in.unit),
          .due = amounts(in.due),
          .budgets = amounts(in.budgets),
          .may_misround = amounts(in.may_misround),
          .misrounded = rows.is_exact ? nullptr : in.misrounded.mutable_data_ptr<bool>()};
}

// The same as measured(), by one pass over the elements on a device. Columns that will be asked for
// are summed behind it: whoever asks then would wait for what is queued by then.
std::shared_ptr<const DistantRows> measured_by_kernel(const OracleCall& call, DeviceCopies& copies,
                                                      const Exact& exact, const Own& own) {
  const RowsToMeasure& rows = call.measure;
  std::vector<RowRange> ranges;
  if (!rows.is_exact) ranges = asked_together(call.rows);
  const at::Tensor got = copies.of(rows.got, rows.owner, tensor_of(exact.want).device());
  InKernel kernel(rows, got, ranges, exact, own);
  const int64_t count = kernel.want.size(0), width = kernel.want.size(1);
  const int64_t groups = groups_of(rows, own.shared);
  const int64_t before_columns = kRowColumns * count + kGroupColumns * count * groups;
  weigh_rows(queue_of_this_thread(kernel.want.device()), kernel.rows_to_weigh(rows, groups));
  sum_columns_there(kernel.in.amounts(), ranges,
                    kernel.tables.mutable_data_ptr<double>() + before_columns);
  const auto held = std::make_shared<const at::Tensor>(on_host(kernel.tables));
  Table table(held, 0, count);
  for (int64_t i = 0; i < count; ++i)
    if (table.at(kOdd, i) > 0) return nullptr;
  std::vector<ColumnsOfRows> columns;
  for (size_t r = 0; r < ranges.size(); ++r) {
    const int64_t first = before_columns + std::ssize(columns) * kColumnColumns * width;
    columns.push_back({ranges[r], std::make_shared<const DistantColumns>(
                                      columns_of(Table(held, first, width), ranges[r].count))});
  }
  return std::make_shared<MeasuredRows>(std::move(table),
                                        Table(held, kRowColumns * count, count * groups), groups,
                                        std::move(kernel.in), width, std::move(columns));
}

}  // namespace

void measure_rows(const OracleCall& call, DeviceCopies& copies, Exact& exact) {
  const OpKind op = call.place.point->op;
  const RowsToMeasure& rows = call.measure;
  if (exact.shape != rows.got.shape || rows.dtype == DType::f64) return;
  Own own;
  if (!own_errors(op, exact, own.limit, own.variance, own.shared, own.products, own.common)) return;
  const bool on_device = tensor_of(exact.want).is_cuda() && has_measure_kernels();
  std::shared_ptr<const DistantRows> found = on_device
                                                 ? measured_by_kernel(call, copies, exact, own)
                                                 : measured(with_budgets(rows, exact, own), rows);
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
