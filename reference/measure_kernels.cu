// Rows: a block of threads has a row. Where rows have heads a warp has a head, else all threads
// share the row; what a thread adds up stays in registers until then. Sums are joined across lanes
// and then across warps in one order, and of equally bad elements the first is the worst. Each step
// rounds as it is written: this file is compiled without multiply-adds that round once.
#include <cmath>

#include "kernels/base/check.h"
#include "reference/measure_kernels.h"
#include "src/stats/roundoff.h"
#include "src/stats/row_loops.h"

namespace lockstep {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffff;

__device__ double power_of_two_of(double x) {
  return __longlong_as_double(__double_as_longlong(x) & 0x7ff0000000000000);
}

__device__ double number_at(const StoredNumbers& x, int64_t i) {
  if (x.is_fp32) return static_cast<const float*>(x.values)[i];
  return __int_as_float(int{static_cast<const uint16_t*>(x.values)[i]} << 16);
}

__device__ double spacing_around(const RowsToWeigh& rows, double x) {
  return fmax(power_of_two_of(x), rows.least) * rows.of_power;
}

// turned_chance() of reference/rounded_rows.h, of one element.
__device__ double turned_chance(double want, double spacing, double inner, double chance) {
  if (chance > kOneBorder || chance <= 0) return chance;
  const double at = fabs(want) / spacing, distance = fabs(at - floor(at) - 0.5);
  if (distance * spacing <= kOracleError * inner) return chance;
  if (chance > 1e-15 && distance > 11 * chance) return chance;
  return fmax(chance, 0.5 * erfc(distance / (chance * 1.7724538509055160273)));
}

// An element beside what the dtype makes of its exact result.
struct Beside {
  double want, got, rounded, spacing, limit, over_v, may_misround, eta, budgets;
  bool differs, is_plain;

  __device__ Beside(const RowsToWeigh& rows, int64_t i) {
    want = rows.want[i], got = number_at(rows.got, i);
    const double own = rows.limit ? rows.limit[i] : 0;
    const double variance = rows.variance ? rows.variance[i] : 0;
    spacing = spacing_around(rows, want);
    limit = spacing_around(rows, fabs(want) + own) / 2 + own;
    over_v = 1 / (spacing * spacing / 12 + variance);
    const double inside = sqrt(variance) / spacing;
    may_misround = fmin(fmin(inside, fmax(rows.common * inside, rows.misrounds)), 1.0);
    const double shift = 0x1.8p52 * spacing, half = spacing / 2, room = limit - half;
    rounded = copysign((want + shift) - shift, want);
    eta = got - want, budgets = fabs(eta) / limit;
    const bool is_product = rows.products && rows.products[i];
    if (rows.meets_borders || is_product)
      may_misround = fmin(turned_chance(want, spacing, is_product ? 0 : room, may_misround), 1.0);
    if (rows.meets_borders) {
      const double unseen = kOracleError * room;
      const bool is_on_border = fabs(half - fabs(rounded - want)) <= unseen;
      if (!rows.is_exact && is_on_border && fabs(eta) - half <= unseen) rounded = got;
    }
    differs = got != rounded || (rows.is_exact && signbit(got) != signbit(rounded));
    // Written so that NaN is not plain.
    is_plain = fabs(want) < rows.largest && fabs(rounded) <= rows.largest &&
               fabs(got) < rows.largest && limit > 0 && over_v > 0 && over_v < INFINITY &&
               budgets <= (rows.is_exact ? 1 : kSurelyWithin) && !(rows.is_exact && differs);
  }
};

// The largest of some numbers, and the first place that has it; -1: none is 0 or more.
struct Worst {
  double most = -1;
  int64_t at = -1;

  __device__ void add(double x, int64_t i) {
    if (x > most) most = x, at = i;
  }
  __device__ void join(const Worst& other) {
    const bool is_before = other.most == most && other.at < at;
    if (other.most > most || is_before) *this = other;
  }
  __device__ void join_lanes() {
    for (int lane = 16; lane > 0; lane /= 2)
      join({__shfl_xor_sync(kAll, most, lane), __shfl_xor_sync(kAll, at, lane)});
  }
};

__device__ double sum_of_lanes(double x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(kAll, x, lane);
  return x;
}

// The sums of a row's elements.
struct RowTotals {
  double power = 0, squares = 0, differing = 0, compared = 0, not_close = 0, propagated = 0;
  double total = 0, floor = 0, units = 0, due = 0, may = 0, power_by_v = 0, offset = 0, cross = 0;
  double usual_misrounds = 0, scatter = 0, odd = 0;
  uint64_t hash = 0;
  double largest = 0, inner = 0;
  Worst worst, misrounded;

  template <typename Visit>
  __device__ void visit_sums(Visit visit) {
    visit(kPower, power), visit(kEtaSquares, squares), visit(kDiffering, differing);
    visit(kCompared, compared), visit(kNotClose, not_close), visit(kPropagated, propagated);
    visit(kTotal, total), visit(kFloor, floor), visit(kUnits, units), visit(kDue, due);
    visit(kMay, may), visit(kUsualMisrounds, usual_misrounds), visit(kPowerByV, power_by_v);
    visit(kOffset, offset), visit(kCross, cross), visit(kScatter, scatter), visit(kOdd, odd);
  }
};

// The sums of a group, of what fp32 has of each element, as on the host.
struct GroupTotals {
  double units = 0, due = 0, misrounded_count = 0, may = 0, shared = 0, squares = 0, cross = 0;
  Worst worst, misrounded;

  template <typename Visit>
  __device__ void visit_sums(Visit visit) {
    visit(kGroupUnits, units), visit(kGroupDue, due);
    visit(kGroupMisrounded, misrounded_count), visit(kGroupMay, may);
    visit(kGroupShared, shared), visit(kGroupSquares, squares), visit(kGroupCross, cross);
  }
};

__device__ void compare(const RowsToWeigh& rows, int64_t i, const Beside& e, RowTotals& row) {
  if (rows.exact == nullptr) return;
  const double exact = rows.exact[i], rounded = number_at(rows.rounded, i);
  const double total = e.got - exact, propagated = e.want - exact, floor = rounded - exact;
  row.not_close += fabs(e.got - rounded) <= 1e-5 + rows.close * fabs(rounded) ? 0 : 1;
  if (!(isfinite(total) && isfinite(propagated) && isfinite(floor))) return;
  row.compared += 1;
  row.propagated += propagated * propagated;
  row.total += total * total;
  row.floor += floor * floor;
}

// The hash of the element's numbers, as hash_of_row() adds it up.
__device__ uint64_t hash_of(const Beside& e, int64_t in_row) {
  const uint64_t want = static_cast<uint32_t>(__float_as_int(static_cast<float>(e.want)));
  const uint64_t got = static_cast<uint32_t>(__float_as_int(static_cast<float>(e.got)));
  const uint64_t term = (want << 32 | got) * hash_factor(static_cast<uint64_t>(in_row));
  return term ^ (term >> 32);
}

// Adds an element to its row and to its group, in which it has that number.
__device__ void add(const RowsToWeigh& rows, int64_t first, int64_t in_row, int64_t in_group,
                    RowTotals& row, GroupTotals& group) {
  const int64_t i = first + in_row;
  const Beside e(rows, i);
  const double half = e.spacing / 2, room = e.limit - half;
  row.power += e.want * e.want;
  row.squares += e.eta * e.eta;
  row.differing += e.differs ? 1 : 0;
  row.odd += e.is_plain ? 0 : 1;
  row.largest = fmax(row.largest, fabs(e.got));
  if (room > 0) row.inner = fmax(row.inner, (fabs(e.eta) - half) / room);
  row.worst.add(e.budgets, in_row);
  if (e.differs) row.misrounded.add(e.budgets, in_row);
  compare(rows, i, e, row);
  if (rows.is_exact) return;
  const double unit = e.eta * e.eta * e.over_v, rest = e.rounded - e.want,
               delta = e.got - e.rounded;
  const double due = (rest * rest - e.spacing * e.spacing / 12) * e.over_v;
  const double moved = e.may_misround <= rows.misround_in_gain ? delta : 0;
  const double term = moved * e.want * e.over_v;
  const double shared = rows.shared ? rows.shared[i] * e.over_v : 0;
  row.hash += hash_of(e, in_row);
  row.units += unit, row.due += due;
  if (e.may_misround <= rows.usual_misround) {
    row.may += e.may_misround;
    row.usual_misrounds += e.differs ? 1 : 0;
  }
  row.power_by_v += e.want * e.want * e.over_v;
  row.offset += moved * sqrt(e.over_v);
  row.cross += term;
  if (!rows.shared) row.scatter += term * term;
  const float narrow_unit = static_cast<float>(unit), narrow_due = static_cast<float>(due);
  const float narrow_may = static_cast<float>(e.may_misround);
  const float narrow_budgets = static_cast<float>(e.budgets);
  rows.unit[i] = narrow_unit, rows.due[i] = narrow_due, rows.budgets[i] = narrow_budgets;
  rows.may_misround[i] = narrow_may, rows.misrounded[i] = e.differs;
  group.units += narrow_unit, group.due += narrow_due, group.may += narrow_may;
  group.misrounded_count += e.differs ? 1 : 0;
  group.shared += shared, group.squares += shared * shared;
  if (rows.shared) group.cross += term;
  group.worst.add(narrow_budgets, in_group);
  if (e.differs) group.misrounded.add(narrow_budgets, in_group);
}

// Puts the worst element, from `most` on: how bad, where, and its numbers.
__device__ void put_worst(const RowsToWeigh& rows, const Worst& worst, int64_t first, double* most,
                          int64_t stride) {
  const int64_t i = first + max(worst.at, int64_t{0});
  most[0] = worst.most, most[stride] = static_cast<double>(worst.at);
  most[2 * stride] = rows.want[i], most[3 * stride] = number_at(rows.got, i);
}

__device__ void put_worst_of_group(const RowsToWeigh& rows, const GroupTotals& group,
                                   int64_t number, int64_t first) {
  const int64_t count = rows.rows * rows.groups;
  double* const table = rows.of_groups + number;
  put_worst(rows, group.worst, first, table + kGroupMost * count, count);
  put_worst(rows, group.misrounded, first, table + kGroupMostMisrounded * count, count);
}

// The sums and the worst elements of the warps of a block.
struct OfWarps {
  double sums[kWarps][int{kRowColumns} + kGroupColumns];
  uint64_t hash[kWarps];
  double largest[kWarps], inner[kWarps];
  Worst worst[kWarps], misrounded[kWarps], of_group[kWarps], misrounded_of_group[kWarps];
};

// Joins lanes, and leaves what they came to for join_warps().
__device__ void join_lanes(RowTotals& row, GroupTotals& group, OfWarps& shared) {
  const int warp = threadIdx.x / 32;
  const bool is_first = threadIdx.x % 32 == 0;
  const auto put = [&](int column, double& x) {
    x = sum_of_lanes(x);
    if (is_first) shared.sums[warp][column] = x;
  };
  row.visit_sums(put);
  group.visit_sums([&](int column, double& x) { put(kRowColumns + column, x); });
  for (int lane = 16; lane > 0; lane /= 2) {
    row.hash += __shfl_xor_sync(kAll, row.hash, lane);
    row.largest = fmax(row.largest, __shfl_xor_sync(kAll, row.largest, lane));
    row.inner = fmax(row.inner, __shfl_xor_sync(kAll, row.inner, lane));
  }
  row.worst.join_lanes(), row.misrounded.join_lanes();
  group.worst.join_lanes(), group.misrounded.join_lanes();
  if (!is_first) return;
  shared.hash[warp] = row.hash;
  shared.largest[warp] = row.largest, shared.inner[warp] = row.inner;
  shared.worst[warp] = row.worst, shared.misrounded[warp] = row.misrounded;
  shared.of_group[warp] = group.worst, shared.misrounded_of_group[warp] = group.misrounded;
}

// The first thread joins all but the sums, which each have a thread.
__device__ void join_warps(const RowsToWeigh& rows, RowTotals& row, GroupTotals& group,
                           const OfWarps& shared) {
  const int64_t number = blockIdx.x, first = number * rows.width;
  const auto sum_of = [&](int column) {
    double sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += shared.sums[warp][column];
    return sum;
  };
  row.visit_sums([&](int column, double&) {
    if (threadIdx.x == column) rows.of_rows[column * rows.rows + number] = sum_of(column);
  });
  if (rows.groups == 1)
    group.visit_sums([&](int column, double&) {
      if (threadIdx.x == column)
        rows.of_groups[column * rows.rows + number] = sum_of(kRowColumns + column);
    });
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) {
    row.hash += shared.hash[warp];
    row.largest = fmax(row.largest, shared.largest[warp]);
    row.inner = fmax(row.inner, shared.inner[warp]);
    row.worst.join(shared.worst[warp]), row.misrounded.join(shared.misrounded[warp]);
    group.worst.join(shared.of_group[warp]);
    group.misrounded.join(shared.misrounded_of_group[warp]);
  }
  double* const table = rows.of_rows + number;
  table[kLargestGot * rows.rows] = row.largest, table[kInner * rows.rows] = row.inner;
  table[kHash * rows.rows] = __longlong_as_double(static_cast<int64_t>(row.hash));
  put_worst(rows, row.worst, first, table + kMostBudgets * rows.rows, rows.rows);
  put_worst(rows, row.misrounded, first, table + kMostDiffering * rows.rows, rows.rows);
  if (rows.groups == 1) put_worst_of_group(rows, group, number, first);
}

// Heads: the warp's own of a row.
__device__ void add_heads(const RowsToWeigh& rows, RowTotals& row) {
  const int64_t first = blockIdx.x * rows.width, size = rows.width / rows.groups;
  for (int64_t head = threadIdx.x / 32; head < rows.groups; head += kWarps) {
    GroupTotals group;
    for (int64_t i = threadIdx.x % 32; i < size; i += 32)
      add(rows, first, head * size + i, i, row, group);
    const int64_t number = blockIdx.x * rows.groups + head;
    group.visit_sums([&](int column, double& x) {
      x = sum_of_lanes(x);
      if (threadIdx.x % 32 == 0) rows.of_groups[column * rows.rows * rows.groups + number] = x;
    });
    group.worst.join_lanes(), group.misrounded.join_lanes();
    if (threadIdx.x % 32 == 0) put_worst_of_group(rows, group, number, first + head * size);
  }
}

__global__ void __launch_bounds__(kThreads) weigh_kernel(RowsToWeigh rows) {
  __shared__ OfWarps shared;
  RowTotals row;
  GroupTotals group;  // the row, where it has no heads
  if (rows.groups > 1)
    add_heads(rows, row);
  else
    for (int64_t i = threadIdx.x; i < rows.width; i += kThreads)
      add(rows, blockIdx.x * rows.width, i, i, row, group);
  join_lanes(row, group, shared);
  __syncthreads();
  join_warps(rows, row, group, shared);
}

// The sums of some rows of a column, and the worst of its elements.
struct ColumnTotals {
  double units = 0, due = 0, misrounded_count = 0, may = 0;
  Worst worst, misrounded;

  __device__ void join(const ColumnTotals& other) {
    units += other.units, due += other.due, may += other.may;
    misrounded_count += other.misrounded_count;
    worst.join(other.worst), misrounded.join(other.misrounded);
  }
};

// A block of threads has so many neighbouring columns, and of each so many threads. Each of those
// takes every kAtOnce-th row, and the first joins them in their order.
constexpr int kNeighbours = 16, kAtOnce = 32;

__device__ void put_worst_of_column(const ColumnsToSum& c, const Worst& worst, int64_t column,
                                    double* most) {
  const int64_t i = max(worst.at, c.first) * c.width + column;
  most[0] = worst.most, most[c.width] = static_cast<double>(worst.at);
  most[2 * c.width] = c.want[i], most[3 * c.width] = number_at(c.got, i);
}

__global__ void __launch_bounds__(kNeighbours* kAtOnce) columns_kernel(ColumnsToSum c) {
  __shared__ ColumnTotals shared[kAtOnce][kNeighbours];
  const int64_t column = int64_t{blockIdx.x} * kNeighbours + threadIdx.x;
  ColumnTotals total;
  for (int64_t i = threadIdx.y; i < c.rows && column < c.width; i += kAtOnce) {
    const int64_t row = c.numbers ? c.numbers[i] : c.first + i, at = row * c.width + column;
    total.units += c.unit[at], total.due += c.due[at], total.may += c.may_misround[at];
    total.misrounded_count += c.misrounded[at] ? 1 : 0;
    total.worst.add(c.budgets[at], row);
    if (c.misrounded[at]) total.misrounded.add(c.budgets[at], row);
  }
  shared[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || column >= c.width) return;
  for (int i = 1; i < kAtOnce; ++i) total.join(shared[i][threadIdx.x]);
  double* const table = c.columns + column;
  table[kColumnUnits * c.width] = total.units, table[kColumnDue * c.width] = total.due;
  table[kColumnMisrounded * c.width] = total.misrounded_count;
  table[kColumnMay * c.width] = total.may;
  put_worst_of_column(c, total.worst, column, table + kColumnMost * c.width);
  put_worst_of_column(c, total.misrounded, column, table + kColumnMostMisrounded * c.width);
}

void check_cuda(cudaError_t status) {
  check(status == cudaSuccess, "CUDA error in measuring rows: {}", cudaGetErrorString(status));
}

}  // namespace

bool has_measure_kernels() { return true; }

void weigh_rows(const KernelQueue& queue, const RowsToWeigh& rows) {
  check_cuda(cudaSetDevice(queue.gpu));
  weigh_kernel<<<static_cast<unsigned>(rows.rows), kThreads, 0,
                 static_cast<cudaStream_t>(queue.stream)>>>(rows);
  check_cuda(cudaGetLastError());
}

void sum_columns(const KernelQueue& queue, const ColumnsToSum& columns) {
  check_cuda(cudaSetDevice(queue.gpu));
  const auto blocks = static_cast<unsigned>((columns.width + kNeighbours - 1) / kNeighbours);
  columns_kernel<<<blocks, dim3(kNeighbours, kAtOnce), 0,
                   static_cast<cudaStream_t>(queue.stream)>>>(columns);
  check_cuda(cudaGetLastError());
}

}  // namespace lockstep
