// Columns of rows that are measured where they were computed (measured_rows.h).
#pragma once

#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "probes/record.h"
#include "src/stats/distant_rows.h"

namespace at {
class Tensor;
}

namespace lockstep {

// The amounts that elements add to their slices (WeighedRow), each [rows, columns], which columns
// are sums of. Somebody else owns them.
struct AmountsOfRows {
  const at::Tensor &want, &got;                           // got: of any dtype
  const at::Tensor &unit, &due, &budgets, &may_misround;  // fp32
  const at::Tensor& misrounded;                           // whether
};

// Tensors of one shape, one after the other in host memory.
class Table {
 public:
  explicit Table(const std::vector<at::Tensor>& columns);
  // Columns of `count` numbers that are in host memory already, from `first` of those on.
  Table(std::shared_ptr<const at::Tensor> held, int64_t first, int64_t count);
  double at(int column, int64_t i) const { return values_[column * count_ + i]; }
  int64_t size() const { return count_; }  // of a tensor
  int64_t count_of(int column, int64_t i) const { return std::llrint(at(column, i)); }

 private:
  std::shared_ptr<const at::Tensor> held_;
  const double* values_ = nullptr;  // of it
  int64_t count_ = 0;
};

// Four tensors: the most budgets along an axis, the first place that has it, and the numbers there.
// Where all are below 0 the place is -1.
std::vector<at::Tensor> worst_along(int64_t axis, const at::Tensor& budgets, const at::Tensor& want,
                                    const at::Tensor& got);
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
DistantColumns columns_of(const AmountsOfRows& elements, std::span<const int64_t> rows);
// Queues the sums of each range on the device that has the elements and measure kernels. into: of
// all tables, one after the other, in fp64 there.
void sum_columns_there(const AmountsOfRows& elements, std::span<const RowRange> ranges,
                       double* into);

}  // namespace lockstep
