// Computes what single elements of an op should be, by another hand than the oracle's: loops over
// scalars in long double, written from the op's definition. It shares with the reference, and with
// the ops, nothing but the reader of the checkpoint's tensors and the table of points, and it is
// for the few elements of findings: it takes no care to be fast.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "probes/graph.h"
#include "probes/recorder.h"
#include "src/weights/checkpoint.h"
#include "traces/trace.h"

namespace lockstep {

// Its questions change nothing in it, so that several threads may ask.
class SecondOpinion {
 public:
  // The value of one element. long double has 64 bits on x86-64: a sum of n products loses at most
  // n 2^-64 of their sizes.
  struct Opinion {
    long double exact = 0;  // by the contract's chain, before it is stored
    double stored = 0;      // rounded to the dtype, halves to even
    std::string lacking;    // why there is none; empty: there is one
  };

  // The checkpoint is borrowed. dtype: of the run, to which weights are rounded first.
  SecondOpinion(const Checkpoint& checkpoint, const Graph& graph, DType dtype);
  ~SecondOpinion();

  // The places whose tensors of a pass it reads: the op's inputs, and the two tensors that the
  // input of a norm is the sum of.
  std::vector<Place> reads(const Place& place) const;
  // Computes the element at `index`, the axes after the row, of the place's tensor at that row,
  // from the inputs that the pass shows. Knows all ops of the oracle but the rotary tables, under
  // all contracts but tf32, whose halves libraries round in two ways.
  Opinion of(const Place& place, RoundingContract contract, const Pass& pass, const Row& row,
             std::span<const int64_t> index) const;

 private:
  struct Config;
  struct Call;

  long double norm(const Call& call) const;
  long double linear(const Call& call) const;
  long double rope(const Call& call) const;
  long double attention(const Call& call) const;
  long double silu_mul(const Call& call) const;
  long double softmax(const Call& call) const;
  long double expert_linear(const Call& call) const;
  long double weighted_sum(const Call& call) const;
  long double evaluate(const Call& call) const;
  // Row `row` of a weight times x, which the contract may round.
  long double product(const Call& call, const std::string& weight, int64_t row,
                      const std::vector<long double>& x) const;
  long double weight_at(const std::string& name, int64_t i) const;

  const Checkpoint& checkpoint_;
  Graph graph_;
  DType dtype_;
  std::unique_ptr<Config> config_;
};

}  // namespace lockstep
