// One kernel sums the columns of a range on a device that has measure kernels; elsewhere an op of
// LibTorch does a step over all rows at once.
#include "reference/measured_columns.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <utility>

#include "reference/bridge.h"
#include "reference/measure_kernels.h"
#include "reference/own_stream.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

// By ops of LibTorch. Rows are numbered as they stand here.
Table table_of(const AmountsOfRows& e) {
  const auto sum = [](const at::Tensor& x) { return x.sum({0}, /*keepdim=*/false, at::kDouble); };
  std::vector<at::Tensor> columns = {sum(e.unit), sum(e.due), sum(e.misrounded),
                                     sum(e.may_misround)};
  for (const at::Tensor& budgets : {e.budgets, only(e.misrounded, e.budgets)})
    for (const at::Tensor& x : worst_along(0, budgets, e.want, e.got)) columns.push_back(x);
  return Table(columns);
}

// numbers: of the rows, on the device; undefined: `rows` are neighbours.
void sum_on_device(const AmountsOfRows& e, RowRange rows, const at::Tensor& numbers, double* into) {
  const auto amounts = [](const at::Tensor& x) { return x.const_data_ptr<float>(); };
  sum_columns(queue_of_this_thread(e.want.device()),
              {.first = rows.first,
               .rows = rows.count,
               .width = e.want.size(1),
               .numbers = numbers.defined() ? numbers.const_data_ptr<int64_t>() : nullptr,
               .want = e.want.const_data_ptr<double>(),
               .got = {e.got.const_data_ptr(), e.got.scalar_type() == at::kFloat},
               .unit = amounts(e.unit),
               .due = amounts(e.due),
               .budgets = amounts(e.budgets),
               .may_misround = amounts(e.may_misround),
               .misrounded = e.misrounded.const_data_ptr<bool>(),
               .columns = into});
}

}  // namespace

Table::Table(const std::vector<at::Tensor>& columns) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& column : columns) wide.push_back(column.to(at::kDouble));
  held_ = std::make_shared<const at::Tensor>(on_host(at::stack(wide)));
  values_ = held_->const_data_ptr<double>();
  count_ = columns.empty() ? 0 : columns[0].numel();
}

Table::Table(std::shared_ptr<const at::Tensor> held, int64_t first, int64_t count)
    : held_(std::move(held)), values_(held_->const_data_ptr<double>() + first), count_(count) {}

std::vector<at::Tensor> worst_along(int64_t axis, const at::Tensor& budgets, const at::Tensor& want,
                                    const at::Tensor& got) {
  const auto [most, place] = budgets.max(axis);
  const at::Tensor at = place.unsqueeze(axis);
  const auto there = [&](const at::Tensor& x) { return x.gather(axis, at).squeeze(axis); };
  return {most, place.masked_fill(most < 0, -1), there(want), there(got)};
}

at::Tensor only(const at::Tensor& chosen, const at::Tensor& x) {
  return x.masked_fill(~chosen, -1);
}

std::vector<RowRange> asked_together(std::span<const Row> rows) {
  const int64_t count = std::ssize(rows);
  std::vector<RowRange> ranges = {{0, count}};
  for (int64_t first = 0, end = 0; first < count; first = end) {
    const auto other = std::ranges::find_if(
        rows.subspan(first), [&](const Row& row) { return row.request != rows[first].request; });
    end = other - rows.begin();
    if (end - first >= kLeastSlice && end - first < count) ranges.push_back({first, end - first});
  }
  return ranges;
}

DistantColumns columns_of(const Table& table, int64_t rows) {
  const auto amounts = [&](OfColumn amount) {
    std::vector<double> all(static_cast<size_t>(table.size()));
    for (int64_t i = 0; i < table.size(); ++i) all[i] = table.at(amount, i);
    return all;
  };
  const auto worst = [&](OfColumn most, OfColumn row, OfColumn want, OfColumn got) {
    std::vector<DistantColumns::Worst> all(static_cast<size_t>(table.size()));
    for (int64_t i = 0; i < table.size(); ++i)
      all[i] = {table.count_of(row, i), table.at(want, i), table.at(got, i),
                to_f32(table.at(most, i))};
    return all;
  };
  return {.elements = std::vector(static_cast<size_t>(table.size()), static_cast<double>(rows)),
          .squares = amounts(kColumnUnits),
          .due = amounts(kColumnDue),
          .misrounded = amounts(kColumnMisrounded),
          .may_misround = amounts(kColumnMay),
          .worst = worst(kColumnMost, kColumnRow, kColumnWant, kColumnGot),
          .worst_misrounded = worst(kColumnMostMisrounded, kColumnRowMisrounded,
                                    kColumnWantMisrounded, kColumnGotMisrounded)};
}

DistantColumns columns_of(const AmountsOfRows& e, std::span<const int64_t> rows) {
  DistantColumns result;
  const int64_t count = std::ssize(rows), width = e.want.size(1);
  const bool are_neighbours = count > 0 && rows.back() - rows.front() == count - 1;
  run_by_thread(e.want.device(), [&] {
    const auto numbers = [&] {
      return at::from_blob(const_cast<int64_t*>(rows.data()), {count}, at::kLong)
          .to(e.want.device(), /*non_blocking=*/false, /*copy=*/true);
    };
    if (e.want.is_cuda() && has_measure_kernels()) {
      const at::Tensor table = at::empty({kColumnColumns, width}, e.want.options());
      sum_on_device(e, {rows.front(), count}, are_neighbours ? at::Tensor() : numbers(),
                    table.mutable_data_ptr<double>());
      result =
          columns_of(Table(std::make_shared<const at::Tensor>(on_host(table)), 0, width), count);
      return;
    }
    const at::Tensor chosen = numbers();
    const auto some = [&](const at::Tensor& x) { return x.index_select(0, chosen); };
    result = columns_of(table_of({some(e.want), some(e.got), some(e.unit), some(e.due),
                                  some(e.budgets), some(e.may_misround), some(e.misrounded)}),
                        count);
    for (auto* worst : {&result.worst, &result.worst_misrounded})
      for (DistantColumns::Worst& of : *worst)
        if (of.row >= 0) of.row = rows[static_cast<size_t>(of.row)];
  });
  return result;
}

void sum_columns_there(const AmountsOfRows& e, std::span<const RowRange> ranges, double* into) {
  for (const RowRange& rows : ranges) {
    sum_on_device(e, rows, at::Tensor(), into);
    into += kColumnColumns * e.want.size(1);
  }
}

}  // namespace lockstep
