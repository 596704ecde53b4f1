// Columns of rows that are measured where they were computed (measured_rows.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "probes/record.h"
#include "src/stats/distant_rows.h"

namespace lockstep {

// The amounts that elements add to their slices (WeighedRow), each [rows, columns].
struct InSlices {
  at::Tensor want, got;                         // got: of any dtype
  at::Tensor unit, due, budgets, may_misround;  // fp32
  at::Tensor misrounded;                        // whether
};

// Tensors of one shape, one after the other in host memory.
class Table {
 public:
  explicit Table(const std::vector<at::Tensor>& columns);
  // Columns of `count` numbers that are in host memory already, from `first` of those on.
  Table(std::shared_ptr<const at::Tensor> held, int64_t first, int64_t count)
      : held_(std::move(held)), values_(held_->const_data_ptr<double>() + first), count_(count) {}
  double at(int column, int64_t i) const { return values_[column * count_ + i]; }
  int64_t size() const { return count_; }  // of a tensor
  int64_t count_of(int column, int64_t i) const { return std::llrint(at(column, i)); }

 private:
  std::shared_ptr<const at::Tensor> held_;
  const double* values_ = nullptr;  // of it
  int64_t count_ = 0;
};

// The largest along an axis, and the first place that has it; none where all are below 0.
struct Largest {
  Largest(const at::Tensor& x, int64_t axis);
  // The entries of x there, where there is one.
  at::Tensor of(const at::Tensor& x, int64_t axis) const;
  at::Tensor value, at;
};

// `x` where `chosen`, else -1.
at::Tensor only(const at::Tensor& chosen, const at::Tensor& x);

// Neighbouring rows of an answer.
struct RowRange {
  int64_t first, count;
};

// The rows whose columns will be asked for: all together, as the pool of a place takes them, and
// those of each request, where they are enough for columns of a node.
std::vector<RowRange> asked_together(std::span<const Row> rows);

// The columns of so many rows, by a table of them (kColumnColumns of measure_kernels.h).
DistantColumns columns_of(const Table& table, int64_t rows);
// Those of any rows, in fp64, of amounts in fp32 as ColumnSums has them.
DistantColumns columns_of(const InSlices& elements, std::span<const int64_t> rows);
// Queues the sums of each range on the device that has the elements and measure kernels. into: of
// all tables, one after the other, in fp64 there.
void sum_columns_there(const InSlices& elements, std::span<const RowRange> ranges, double* into);

}  // namespace lockstep
