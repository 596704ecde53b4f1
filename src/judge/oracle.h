// What the judge asks of a reference. The judge knows no torch and no engine: reference/ implements
// these two classes and the commands hand them in.
#pragma once

#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "probes/graph.h"
#include "probes/recorder.h"
#include "src/judge/numbers.h"

namespace lockstep {

// One op on given inputs: the exact result y = O(x), computed in fp64 without any rounding inside,
// and per element the magnitudes from which budget.h computes what one rounding allows. Those that
// an op does not use are empty; else all have one entry per element of the output, row-major.
struct Exact {
  Shape shape;
  Numbers want;
  int64_t terms =
      0;  // n: products summed per element (K of a linear op, D of a norm, experts of a softmax)
  Numbers row_terms;  // attention: n of each row, instead of `terms`
  // linear, expert_linear, weighted_sum: S = sum |a||w| + |bias|
  // softmax: |x| + the mean of |x| under the weights, x = logit - largest
  // norm: empty (the budget uses |want|)
  // rope: |x1| + |x2|                        silu_mul: empty
  // attention: sum p|v|
  Numbers magnitude;
  Numbers squares;  // linear, expert_linear, where asked for: sum a^2 w^2
  Numbers spread;   // attention: sum p |v - o|
  Numbers score;    // attention, per (row, head): max over j of scale * sum |q k_j|
  Numbers angle;    // rope: position * inv_freq of the element's pair
  Numbers x1c_x2s;  // rope: sqrt((x1 c)^2 + (x2 s)^2)
  // What kernels that are chains of ops round on the way. inner: norm, the normalised x; silu_mul,
  // silu(gate). factor: what it is multiplied with, norm the weight, silu_mul up.
  Numbers inner, factor;
  Numbers x1, x2, cos, sin;  // rope: of want = x1 cos + x2 sin, of either sign
  Numbers weighted_squares;  // attention: sum p^2 v^2
  // attention, where asked for, per (row, head): what two elements of a head, of values v and v',
  // have in common when each weight p has an error of its own, uniform and in proportion to p. The
  // mean over the pairs of (sum a a')^2 - 0.6 sum (a a')^2, a = p v / sqrt(sum p^2 v^2): half the
  // covariance of the squares of the two errors, each in units of its variance. (A uniform error's
  // fourth cumulant is -1.2 of its variance squared.)
  Numbers overlap;
};

// The K and V that a request's queries read, by position, as the trace has them.
struct KeysValues {
  TensorView k, v;  // [length, kv_heads, head_dim]; position i is row i
};

struct OracleCall {
  Place place;
  DType dtype = DType::bf16;         // the run's: weights are cast to it first, then upcast exactly
  std::vector<TensorView> inputs;    // producers' recorded tensors, rows aligned with `rows`
  std::span<const Row> rows;         // of the output
  std::span<const int32_t> tokens;   // embed: the ids that were fed, one a row
  std::span<const int64_t> lengths;  // rope, one a row: tokens of its request after this pass
  bool squares = false;              // linear, expert_linear: Exact::squares too
  bool overlap = false;              // attention: Exact::overlap too
  KeysValues keys_values;            // attention: of the one request that all rows belong to
};

class Oracle {
 public:
  virtual ~Oracle() = default;
  virtual Graph graph() const = 0;
  // Rows of several requests may be mixed, except for attention. Ops: gather, norm, linear, rope,
  // attention, silu_mul, add, softmax, expert_linear, weighted_sum. cache, argmax and top_k are
  // exact by their inputs alone and are never asked for.
  virtual Exact evaluate(const OracleCall& call) = 0;
};

// A whole model that is not the engine. Runs the passes that it is told, teacher-forced, with its
// own dense K/V per request, and shows every point to the probe.
class ReferenceModel {
 public:
  virtual ~ReferenceModel() = default;
  // Inherited tokens are as the request computed them that had them first, which the pages tell, or
  // computed now where none did, and not shown. Positions of a request must continue where its last
  // pass or its inherited tokens end, or start again earlier, which forgets what came after.
  virtual void run(const PassInfo& pass, Probe& probe) = 0;
};

}  // namespace lockstep
