// A kernel for all rows of an answer on a CUDA device: an element is read once beside what a
// dtype makes of its exact result, and what each row and each head of it come to is written, by the
// formulas of src/stats/row_loops.cc. Numbers lie in the device's memory.
#pragma once

#include <cstdint>

#include "reference/kernel_queue.h"

namespace lockstep {

// The columns of the tables of rows, of groups in them, and of the columns of rows. A number that
// counts or names a place is exact in fp64 as well.
enum OfRow : int {
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
  kUsualMisrounds,
  kPowerByV,
  kOffset,
  kCross,
  kScatter,
  kOdd,  // elements that are not plain, or not surely within their budgets
  kRowColumns
};
enum OfGroup : int {
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
  kGroupGotMisrounded,
  kGroupColumns
};
enum OfColumn : int {
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
  kColumnGotMisrounded,
  kColumnColumns
};

// Nearer to its budget another rounding of the quotient may decide.
inline constexpr double kSurelyWithin = 1 - 0x1p-40;

// Stored numbers, of fp32 or bf16.
struct StoredNumbers {
  const void* values;  // null: there are none
  bool is_fp32;
};

struct RowsToWeigh {
  int64_t rows, width;
  int64_t groups;  // neighbours of one size, of a row; 0: none are asked for
  bool is_exact, meets_borders;
  double least, of_power, largest;  // of the dtype: its least normal number, 2^(1 - precision), max
  double misrounds;                 // RowsToMeasure::misrounds
  double common;                    // of own_errors()
  double usual_misround;            // as in RowNumbers
  double misround_in_gain;          // as in RowNumbers
  double close;                     // what not_close of ErrorSums allows, relative
  // [rows, width] each. limit, variance, shared: of the error before the last rounding; null: none.
  const double* want;
  StoredNumbers got;
  const double *limit, *variance, *shared;
  const bool* products;  // JudgedOp::is_product; null: of none
  const double* exact;   // of the two models; null: nothing is compared
  StoredNumbers rounded;
  // Filled in: column after column, of all rows, and of all groups of all rows. Then, but where
  // rows are of class exact, what each element adds to its column, [rows, width].
  double *of_rows, *of_groups;
  float *unit, *due, *budgets, *may_misround;
  bool* misrounded;
};

// Some rows whose columns are summed, of what RowsToWeigh was filled in with.
struct ColumnsToSum {
  int64_t first, rows, width;
  const int64_t* numbers;  // of the rows, which rise; null: the neighbours from `first` on
  const double* want;
  StoredNumbers got;
  const float *unit, *due, *budgets, *may_misround;
  const bool* misrounded;
  double* columns;  // filled in: one table column after the other, [kColumnColumns, width]
};

bool has_measure_kernels();  // as has_attention_kernels()
void weigh_rows(const KernelQueue& queue, const RowsToWeigh& rows);
void sum_columns(const KernelQueue& queue, const ColumnsToSum& columns);

}  // namespace lockstep
