// An op that hypotheses are asked about, as LibTorch sees it, and the rows of their tables.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reference/held_weights.h"
#include "reference/recipe.h"
#include "src/judge/hypotheses.h"

namespace lockstep {

// A count or a position in fp64, as the sizes of hypotheses are.
inline double as_fp64(int64_t number) { return static_cast<double>(number); }

// The model whose ops hypotheses are about. Everything is borrowed. HeldWeights serve one thread at
// a time, and so does this.
struct HeldModel {
  const ModelConfig& config;
  const HeldWeights& weights;  // fp64
  const Recipe& recipe;
  DType run = DType::bf16;
};

// All tensors are fp64 and where the weights are.
class Asked {
 public:
  Asked(const OpInPass& op, const HeldModel& model);
  ~Asked();

  const OpInPass& op() const { return op_; }
  const HeldModel& model() const { return model_; }
  const Place& place() const { return op_.call.place; }
  // Rows of the pass, of all requests together.
  int64_t rows() const { return std::ssize(op_.call.rows); }
  size_t inputs() const { return op_.call.inputs.size(); }

  const at::Tensor& input(size_t i) const;
  const at::Tensor& got() const;
  at::Tensor right() const;  // as got
  at::Tensor widened(const TensorView& view) const;
  // The tensor that `make` gives, the same for all hypotheses about the op: made when it is first
  // asked for under this name and number; each time anew once all that is kept takes 256 MiB.
  at::Tensor once(const std::string& name, size_t number,
                  const std::function<at::Tensor()>& make) const;
  // The tensor of another place of the same pass; undefined where it was not kept.
  at::Tensor other(const Place& place) const;
  at::Tensor other(std::string_view point) const;  // of the op's layer
  // A column of numbers.
  at::Tensor tensor(const std::vector<double>& values) const;
  // A value that the op's contract may round on the way, as Hugging Face's chains do.
  at::Tensor kept(const at::Tensor& inner) const;
  at::Tensor in_dtype(const at::Tensor& x, DType dtype) const;  // rounded to it
  std::vector<int64_t> positions() const;                       // one a row
  int64_t requests() const;                                     // of the pass

  // The neighbours of one among so many, who stand in a circle: of two there is the other alone,
  // which is 0 then.
  static std::vector<double> neighbours_among(int64_t count);
  // x with each row that of its neighbour; undefined where there is none.
  at::Tensor of_neighbours(const at::Tensor& x, double by) const;

 private:
  struct Tensors;

  const OpInPass& op_;
  const HeldModel& model_;
  std::unique_ptr<Tensors> tensors_;
};

// A hypothesis is about the op, or, as told, about which numbers landed where alone, so that any
// other that fits says more; or it picks rows itself, so that a part of them says less; or a row of
// its result is made of other rows too, in a table that says of its rows that they are apart.
enum class Scope : uint8_t { op, told, rows, pass };

// One way in which an op may go wrong: a row of a table.
struct Hypothesis {
  const char* says;  // with one {:g} for the value, where there is one
  // Its result, undefined where it says nothing of the op.
  at::Tensor (*compute)(const Asked& asked, double value);
  // The values to try. Null: it has none.
  std::vector<double> (*values)(const Asked& asked) = nullptr;
  // Words instead of `says`, of a value that stands for several numbers.
  std::string (*words)(double value) = nullptr;
  Scope scope = Scope::op;
  const char* of_two = nullptr;  // said instead of `says` where a neighbour is the other of two
};

// The tables, by kind of op, the plainest ways first: of two that give the same numbers the first
// is said first.
std::span<const Hypothesis> norm_hypotheses();
std::span<const Hypothesis> rope_hypotheses();
std::span<const Hypothesis> attention_hypotheses();
std::span<const Hypothesis> softmax_hypotheses();  // of attention
std::span<const Hypothesis> key_hypotheses();      // of attention
std::span<const Hypothesis> quantised_attention_hypotheses();
std::span<const Hypothesis> share_hypotheses();  // of both points of shares
std::span<const Hypothesis> linear_hypotheses();
std::span<const Hypothesis> fused_qkv_hypotheses();  // of linear
std::span<const Hypothesis> quantised_linear_hypotheses();
std::span<const Hypothesis> silu_mul_hypotheses();
std::span<const Hypothesis> add_hypotheses();
std::span<const Hypothesis> gather_hypotheses();
std::span<const Hypothesis> expert_weight_hypotheses();
std::span<const Hypothesis> weighted_sum_hypotheses();
std::span<const Hypothesis> expert_linear_hypotheses();
// Ways of any op.
std::span<const Hypothesis> any_hypotheses();
std::span<const Hypothesis> told_hypotheses();

}  // namespace lockstep
