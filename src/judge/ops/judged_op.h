// The judge's knowledge of each kind of op, a file a kind: which chains of roundings its kernels
// have, what one rounding and the fp32 arithmetic before it allow, and what the oracle must give
// for that.
//
// To add a kind: its row in probes/op_kinds.h, a file beside these, its name below and in the table
// of judged_op.cc, which does not compile without; and its exact result in reference/oracle.cc.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "probes/op_kinds.h"
#include "src/judge/oracle.h"

namespace lockstep {

// The facts of a place that decide which chains of roundings it can have.
struct ContractTraits {
  DType dtype = DType::bf16;  // that it rounds to on the way
  bool has_bias = false;
};

struct JudgedOp {
  // One element's share of B and V (budget.h) beyond the rounding of the output.
  struct InnerError {
    double limit = 0;     // of B
    double variance = 0;  // of V
    double shared = 0;    // of `variance`, what all elements of a row, or of a head, have in common
    double underflow = 0;  // of `limit`, for what is no normal number of fp32 on the way
  };

  // The same of neighbours, an array a part, as long as they are.
  struct InnerErrors {
    std::span<double> limit, variance;
    std::span<double> shared, underflow;  // empty where JudgedOp does not have it
  };

  // How far a kernel may be, absolute, from the value of a step before it rounds it.
  struct Reach {
    double most = 0, usual = 0;
  };

  // The sizes of a call that say how far a right kernel is off before it rounds.
  struct Sizes {
    double terms = 0;     // products summed per element, width of a norm, keys of an attention
    double head_dim = 0;  // of an attention
    double scores = 0;    // of an attention: the largest sum |q k| / sqrt(head_dim)
    double pair = 1.5;    // of a rope: (|x1| + |x2|) / r of what one element is turned from
    std::vector<double> gates = {};  // of a SiLU: those of its elements
  };
  // The error of a right kernel before it rounds, in units of 2^-24 of the result.
  struct RightKernel {
    double usual = 0, most = 0;
  };

  OpKind kind;
  // The chains that are tried where none is declared, the strictest first, and those that besides
  // can be declared. Null: fused alone.
  std::vector<RoundingContract> (*tried)(const ContractTraits&) = nullptr;
  std::vector<RoundingContract> (*declared)(const ContractTraits&) = nullptr;
  // Whether the oracle's answer has the magnitudes that `inner` reads, and a step what `reach`
  // does.
  bool (*is_full)(const Exact&) = nullptr;
  bool (*fits)(const Exact&, const Step&) = nullptr;
  // Null: the op copies or compares, and is exact by its inputs. The dtype is the one that its
  // contract rounds to on the way.
  void (*inner)(const Exact&, size_t first, DType, const InnerErrors&) = nullptr;
  Reach (*reach)(const Exact&, const Step&, size_t element) = nullptr;
  // How far a step that a kernel rounded the other way moves the element, `moved` as far as its
  // slope says. Null: that.
  double (*step_moves)(const Exact&, const Step&, size_t element, double moved, DType) = nullptr;
  // Relative error that all elements may have in common.
  double (*gain)(const Exact&) = nullptr;
  // Whether that is what accumulators truncate, so that elements are never too large by it.
  bool truncates = false;
  // Whether all roundings on the way are steps of Exact. Null: they are.
  bool (*knows_steps)(RoundingContract) = nullptr;
  bool is_sum = false;         // of Exact::terms products, of which more or less may cancel
  bool has_shared = false;     // InnerError::shared is filled
  bool has_underflow = false;  // InnerError::underflow is filled
  bool one_table = false;      // all heads and layers read the values of its steps in one table
  // Its exact results lie on the border of two stored numbers more often than one in so many
  // (turning_chance): products of two stored numbers times a number of the row, means of a few.
  bool meets_borders = false;
  // Whether that element alone does, as a product of two stored numbers to within what fp32 can
  // tell. One that fp64 has on the border itself does not: what is exact is rounded to even. Null:
  // none does.
  bool (*is_product)(const Exact&, size_t element) = nullptr;
  bool is_calibrated = true;  // lockstep calibrate learns limits for it
  // Two statements about right kernels that the budgets above are held against, and so no parts of
  // them: the error before the rounding (selftest/detection.h), and one standard deviation of what
  // two right kernels of the same inputs differ by, for so many terms, in units of 2^-24: of each
  // element where it is in proportion to that, else of the largest of its row
  // (diff/same_inputs.h).
  static RightKernel right_sum(const Sizes& sizes);
  static double spread_of_sum(double terms);
  RightKernel (*right_kernel)(const Sizes&) = right_sum;
  double (*spread)(double terms) = spread_of_sum;
  bool in_proportion = false;     // the error of each element is in proportion to it
  bool is_elementwise = false;    // it sums over nothing, or over terms of one sign
  bool may_lose_weights = false;  // parts of its result may be 0 in fp32: exponentials that vanish
  // -Inf is a result like any other: the logarithm of a sum of nothing.
  bool may_be_empty = false;
};

const JudgedOp& judged_op(OpKind kind);

extern const JudgedOp kJudgedGather, kJudgedAngles, kJudgedNorm, kJudgedLinear, kJudgedRope,
    kJudgedCache, kJudgedPartialAttention, kJudgedLogSumExp, kJudgedAttention, kJudgedSiluMul,
    kJudgedAdd, kJudgedArgmax, kJudgedTopK, kJudgedSoftmax, kJudgedExpertLinear, kJudgedWeightedSum;

}  // namespace lockstep
