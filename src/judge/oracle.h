// The questions that the judge asks of a reference. The judge knows no torch and no engine:
// reference/ implements these two classes and the commands hand them in.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/tensor.h"
#include "probes/graph.h"
#include "probes/recorder.h"
#include "src/judge/numbers.h"
#include "traces/trace.h"

namespace lockstep {

class DistantRows;  // src/stats/distant_rows.h

// A value that a chain rounds on the way to its result: `value` before it is rounded, per element
// of the output. slope: the derivative of `want` by it; empty: 1.
struct Step {
  Numbers value, slope;
  // rope: the derivative of `value` by the angle; silu_mul: the size of that by the sigmoid, |gate|
  Numbers other;
};

// One op on given inputs: the result of its contract's chain of roundings (contracts.h), computed
// in fp64, but for the last rounding, to what is stored; and per element the magnitudes from which
// budget.h computes what one rounding allows. Under RoundingContract::fused that is the exact
// result y = O(x). Fields that an op does not use are empty; else all have one entry per element of
// the output, row-major.
struct Exact {
  RoundingContract contract = RoundingContract::fused;
  Shape shape;
  Numbers want;
  int64_t terms =
      0;  // n: products summed per element (K of a linear op, D of a norm, experts of a softmax)
  // attention: n of each row, instead of `terms`; of its shares: of each row and share
  Numbers row_terms;
  // norm, of numbers of 16 bits: by row, the relative error of the sum of squares in units of u
  // where fp32 adds one after the other. Empty: of fp32, whose squares round at random.
  Numbers serial_error;
  // linear, expert_linear, weighted_sum: S = sum |a||w| + |bias|
  // softmax: |x| + the mean of |x| under the weights, x = logit - largest
  // norm: empty (the budget uses |want|)
  // rope: |x1| + |x2|                        silu_mul: |gate up|
  // attention: sum p|v|
  Numbers magnitude;
  Numbers spread;            // attention: sum p |v - o|
  Numbers spread_squares;    // attention: sum p^2 (v - o)^2
  Numbers weighted_squares;  // attention: sum p^2 v^2
  // attention, log_sum_exp, per (row, head) or (row, share, head): max over j of scale * sum |q
  // k_j|
  Numbers score;
  // angles, rope: what the angle of the element's pair may be off, in units of 2^-24. rope: where
  // the tables were inputs too, as a kernel may make its own angles.
  Numbers angle;
  Numbers x1c_x2s;  // rope: sqrt((x1 c)^2 + (x2 s)^2)
  Numbers turned;   // angles, rope: the derivative of `want` by the angle
  Numbers factor;   // silu_mul: up
  // attention under hf, per (row, head): what two elements of a head, of values v and v', have in
  // common when each weight p has an error of its own, uniform and in proportion to p. The
  // mean over the pairs of (sum a a')^2 - 0.6 sum (a a')^2, a = p v / sqrt(sum p^2 v^2): half the
  // covariance of the squares of the two errors, each in units of its variance. (A uniform error's
  // fourth cumulant is -1.2 of its variance squared.)
  Numbers overlap;
  // The roundings on the way that a kernel's own error may turn the other way.
  std::vector<Step> steps;
  // The steps that no single element has (attention: scores and weights, per key) may move an
  // element by so much where they are near a tie (roundoff.h), added up, and by that much in
  // expected square.
  Numbers ties, tie_squares;
  // The statistics of the rows that OracleCall::measure asks about. Then of the fields above those
  // alone are filled that Budget::gain is made of, beside the result. Null: nobody asked, or rows
  // are not all plain and within their budgets, or of an op or contract that is measured by the
  // judge alone.
  std::shared_ptr<const DistantRows> measured;
};

// The K and V that a request's queries read, by position, as the trace has them.
struct KeysValues {
  TensorView k, v;  // [length, kv_heads, head_dim]; position i is row i
};

// Rows of what a model showed and that is kept where the model computed it; null: of nothing.
struct HeldRows {
  std::shared_ptr<const void> tensor;  // of ReferenceModel::held()
  int64_t first = 0;
};

// The engine's rows beside which a result is measured where it is computed.
struct RowsToMeasure {
  TensorView got;                     // as the output; empty: none
  std::shared_ptr<const void> owner;  // of it, as OracleCall::owners
  DType dtype = DType::bf16;
  bool is_exact = false;       // whether the place is of class exact
  double misrounds = 1;        // Budget::misrounds
  bool meets_borders = false;  // JudgedOp::meets_borders
  HeldRows exact, rounded;     // as many of the two models, or null
  // Whether the exact results are read here too, as they are where a model's rows are here.
  bool brings = true;
};

struct OracleCall {
  Place place;
  DType dtype = DType::bf16;  // the run's: weights are cast to it first, then upcast exactly
  RoundingContract contract = RoundingContract::fused;  // one of contracts_of() the op
  // Producers' recorded tensors, rows aligned with `rows`. rope: without tables, or with both. A
  // norm under unrounded_sum: the two tensors that its input is the rounded sum of. An attention
  // that is given attn.partial and attn.lse is what they are merged to.
  std::vector<TensorView> inputs;
  // The owners of their numbers, one an input, or none: as long as an owner lives they stay as they
  // are, so that a copy may serve for other questions too. Each points to its numbers: an input
  // that was put in the place of another has none. Null: nobody says so.
  std::vector<std::shared_ptr<const void>> owners;
  std::span<const Row> rows;         // of the output
  std::span<const int32_t> tokens;   // embed: the ids that were fed, one a row
  std::span<const int64_t> lengths;  // rope, one a row: tokens of its request after this pass
  KeysValues keys_values;            // attention: of the one request that all rows belong to
  // partial_attention, log_sum_exp: the first position of each share of the keys, and the position
  // past the last one.
  std::vector<int64_t> shares;
  // Instead, of an oracle on a device: as a model's attn.kv has them, [length, 2, kv_heads,
  // head_dim].
  HeldRows held_keys_values;
  // false: what only a budget is made of may be missing. Of attention it is, since it takes several
  // times as long as the result.
  bool for_budget = true;
  RowsToMeasure measure;
};

// The fp64 result of single ops of a model, each on the inputs that it is given. It is asked by one
// thread at a time, unless it says otherwise, and throws Error of inputs that are not as the model
// has them.
class Oracle {
 public:
  virtual ~Oracle() = default;
  virtual Graph graph() const = 0;
  // Whether the linear op of that place adds a bias.
  virtual bool has_bias(const Place& place) const = 0;
  // How many experts each token goes to; 0: the model has none.
  virtual int64_t chosen_experts() const = 0;
  // Rows of several requests may be mixed, except for ops that attend. Ops: gather, angles, norm,
  // linear, rope, partial_attention, log_sum_exp, attention, silu_mul, add, softmax, expert_linear,
  // weighted_sum. cache, argmax and top_k are exact by their inputs alone and are never asked for.
  virtual Exact evaluate(const OracleCall& call) = 0;
  // Whether it computes where the processors do not, so that rows are better measured there
  // (OracleCall::measure) than brought here.
  virtual bool on_device() const { return false; }
  // Whether several threads may ask at once, as where each of them waits for a device for the most.
  virtual bool asked_by_several() const { return false; }
  // Elements from which on they are: the numbers of fewer are brought here sooner than the launches
  // that measure them are begun.
  virtual int64_t least_measured() const { return 0; }
  // Copies what is on its device already of a tensor that it may be asked about: `there` holds the
  // numbers of `here`, which `owner` points to and keeps as they are. Questions about those need
  // not bring them there. It may leave it out.
  virtual void hold(const TensorView& /*here*/, const std::shared_ptr<const void>& /*owner*/,
                    const TensorView& /*there*/) {}
  // Bytes that a block of rows may take there, of about a dozen fp64 numbers an element; 0: it does
  // not matter.
  virtual int64_t block_bytes() const { return 0; }
};

// For a Recorder: has the oracle hold what is copied. Empty: of one that computes on the CPU.
inline Recorder::Copied held_by(Oracle& oracle) {
  if (!oracle.on_device()) return {};
  return [&oracle](const Tensor& data, const TensorView& on_device) {
    oracle.hold(data, {data.memory(), data.view().data}, on_device);
  };
}

// A whole model that is not the engine. Runs the passes that it is told, teacher-forced, with its
// own dense K/V per request, and shows every point to the probe.
class ReferenceModel {
 public:
  virtual ~ReferenceModel() = default;
  // Inherited tokens are as the request computed them that had them first, which the pages tell, or
  // computed now where none did, and not shown. Positions of a request must continue where its last
  // pass or its inherited tokens end, or start again earlier, which forgets what came after.
  virtual void run(const PassInfo& pass, Probe& probe) = 0;
  // The same in steps, so that who looks on can let go of what it was shown: begin(), then
  // advance() through one layer after another, and through as many as there are, which computes
  // what comes after them too. -1: what comes before them. `pass` and `probe` must live until then.
  // A model that knows no steps computes all in begin().
  virtual void begin(const PassInfo& pass, Probe& probe) { run(pass, probe); }
  virtual void advance(int /*through*/) {}
  // While a sink that takes tensors where they lie is shown one on a device: what keeps that
  // tensor, as nobody writes to it any more. Null: it is gone after the call.
  virtual std::shared_ptr<const void> held() const { return nullptr; }
  // Copies as many rows of such a tensor as `to` has, from `first` on, to host memory.
  virtual void bring(const std::shared_ptr<const void>& /*held*/, int64_t /*first*/,
                     const TensorView& /*to*/) const {}
  // Which experts the rows of the next passes go to, by layer: [rows, k] int32 in host memory, as
  // in mlp.experts. Where it is empty, not set, or of no such expert, the model chooses itself.
  using Routes = std::function<TensorView(int layer)>;
  virtual void follow(Routes routes) = 0;
  // The request is in no further pass, and nobody inherits from it: what was kept of it may go.
  virtual void end(int32_t request) = 0;
};

}  // namespace lockstep
