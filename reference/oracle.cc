#include "reference/oracle.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "reference/bridge.h"
#include "reference/exact_attention.h"
#include "reference/families.h"
#include "reference/held_weights.h"
#include "reference/rotary.h"

namespace lockstep {
namespace {

class OpOracle final : public Oracle {
 public:
  OpOracle(const Checkpoint& checkpoint, const ReferenceOptions& options)
      : config_(checkpoint.config()),
        weights_(checkpoint, options, DType::f64),
        run_(options.dtype),
        threads_(options.threads),
        rotary_(config_, options.fp64_tables) {}

  Graph graph() const override {
    return {static_cast<int>(config_.layers), config_.qk_norm, config_.experts.layers};
  }
  Exact evaluate(const OracleCall& call) override {
    Exact result;
    in_torch([&] { result = evaluate_in_torch(call); });
    return result;
  }

 private:
  Exact evaluate_in_torch(const OracleCall& call);
  at::Tensor widened(const TensorView& view) const {
    return as_dtype(to_torch(view).to(weights_.device()), DType::f64);
  }
  Exact gather(const OracleCall& call) const;
  Exact norm(const OracleCall& call) const;
  Exact linear(const OracleCall& call) const;
  Exact rope(const OracleCall& call);
  Exact attention(const OracleCall& call) const;
  Exact silu_mul(const OracleCall& call) const;
  Exact add(const OracleCall& call) const;
  Exact softmax(const OracleCall& call) const;
  Exact expert_linear(const OracleCall& call) const;
  Exact weighted_sum(const OracleCall& call) const;
  at::Tensor chosen(const OracleCall& call) const;

  const ModelConfig& config_;
  HeldWeights weights_;
  DType run_;
  int threads_;
  Rotary rotary_;
};

Exact exact(const at::Tensor& want) { return {.shape = shape_of(want), .want = to_numbers(want)}; }

// What is asked must be answerable: a wrong count or shape here would read past a tensor.
void check_inputs(const OracleCall& call, size_t wanted) {
  const std::string_view name = call.place.point->name;
  check(call.inputs.size() == wanted, "{} reads {} tensors, found {}: record all of its producers",
        name, wanted, call.inputs.size());
  for (const TensorView& input : call.inputs)
    check(!input.empty() && input.shape.rank() > 0 && input.rows() == std::ssize(call.rows),
          "an input of {} should have the output's {} rows, found a tensor {}", name,
          call.rows.size(), input.shape.text());
  const OpKind op = call.place.point->op;
  if (op != OpKind::silu_mul && op != OpKind::add) return;
  const Shape &a = call.inputs[0].shape, &b = call.inputs[1].shape;
  check(a == b, "{} reads two tensors of one shape, found {} and {}", name, a.text(), b.text());
}

Exact OpOracle::gather(const OracleCall& call) const {
  check(call.tokens.size() == call.rows.size(), "{} needs a token for each of {} rows, found {}",
        call.place.point->name, call.rows.size(), call.tokens.size());
  return exact(weights_.embedding(call.tokens));
}

Exact OpOracle::norm(const OracleCall& call) const {
  check_inputs(call, 1);
  const at::Tensor x = widened(call.inputs[0]), weight = weights_.norm(call.place);
  check(x.size(-1) == weight.size(0), "{} norms {} values, found a tensor {}",
        call.place.point->name, weight.size(0), shape_of(x).text());
  const at::Tensor mean_square = x.square().mean(-1, /*keepdim=*/true);
  const at::Tensor normalised = x / (mean_square + config_.norm_eps).sqrt();
  Exact result = exact(normalised * weight);
  result.terms = weight.size(0);
  result.inner = to_numbers(normalised);
  result.factor = to_numbers(weight.expand_as(x));
  return result;
}

Exact OpOracle::linear(const OracleCall& call) const {
  check_inputs(call, 1);
  const at::Tensor x = widened(call.inputs[0]).flatten(1);
  at::Tensor magnitude, squares;
  Exact result =
      exact(weights_.linear(call.place, x, &magnitude, call.squares ? &squares : nullptr));
  result.magnitude = to_numbers(magnitude);
  if (call.squares) result.squares = to_numbers(squares);
  result.terms = x.size(1);
  const Point& p = *call.place.point;
  const bool q = p == point("attn.q");
  if (q || p == point("attn.k") || p == point("attn.v"))
    result.shape = {x.size(0), q ? config_.heads : config_.kv_heads, config_.head_dim};
  return result;
}

Exact OpOracle::rope(const OracleCall& call) {
  check_inputs(call, 1);
  check(call.lengths.size() == call.rows.size(),
        "{} needs the length of the request of each of {} rows, found {}", call.place.point->name,
        call.rows.size(), call.lengths.size());
  const at::Tensor x = widened(call.inputs[0]);
  check(x.dim() == 3 && x.size(2) == config_.head_dim, "{} turns heads of {} values, found {}",
        call.place.point->name, config_.head_dim, shape_of(x).text());
  Angles angles;
  for (size_t i = 0; i < call.rows.size(); ++i)
    rotary_.append(angles, call.rows[i].position, call.lengths[i]);
  const auto table = [&](std::vector<double>& values) {
    const std::vector<int64_t> shape = {x.size(0), 1, config_.head_dim / 2};
    return at::from_blob(values.data(), shape, at::kDouble).to(x.device());
  };
  const at::Tensor c = table(angles.cos), s = table(angles.sin), angle = table(angles.angle);
  const auto halves = x.chunk(2, -1);
  const at::Tensor &x1 = halves[0], &x2 = halves[1];
  const at::Tensor sum = x1.abs() + x2.abs();
  Exact result = exact(at::cat({x1 * c - x2 * s, x2 * c + x1 * s}, -1));
  result.magnitude = to_numbers(at::cat({sum, sum}, -1));
  result.angle = to_numbers(at::cat({angle, angle}, -1).expand_as(x));
  result.x1c_x2s = to_numbers(at::cat({at::hypot(x1 * c, x2 * s), at::hypot(x2 * c, x1 * s)}, -1));
  result.x1 = to_numbers(x);
  result.x2 = to_numbers(at::cat({-x2, x1}, -1));
  result.cos = to_numbers(at::cat({c, c}, -1).expand_as(x));
  result.sin = to_numbers(at::cat({s, s}, -1).expand_as(x));
  return result;
}

Exact OpOracle::attention(const OracleCall& call) const {
  const int64_t tokens = std::ssize(call.rows), heads = config_.heads, kv = config_.kv_heads;
  const Shape queries = {tokens, heads, config_.head_dim};
  check(!call.inputs.empty() && !call.inputs[0].empty() && call.inputs[0].shape == queries,
        "attention of {} rows reads queries {}, and was given others: record attn.q_rope whole",
        tokens, queries.text());
  const auto& [k_view, v_view] = call.keys_values;
  const int64_t length = k_view.empty() ? 0 : k_view.rows();
  const Shape cached = {length, kv, config_.head_dim};
  check(!k_view.empty() && !v_view.empty() && k_view.shape == cached && v_view.shape == cached,
        "attention reads K and V of shape {}, found {} and {}", cached.text(), k_view.shape.text(),
        v_view.shape.text());
  for (const Row& row : call.rows)
    check(row.position >= 0 && row.position < length,
          "attention at position {} reads the keys up to it, found {} keys", row.position, length);

  const at::Tensor q = widened(call.inputs[0]).view({tokens, kv, heads / kv, -1});
  const at::Tensor k = widened(k_view).transpose(0, 1), v = widened(v_view).transpose(0, 1);
  std::vector<KeyRange> seen;
  const int64_t window = config_.window[static_cast<size_t>(call.place.layer)];
  for (const Row& row : call.rows) {
    const int64_t end = row.position + 1;
    seen.push_back({window == 0 ? 0 : std::max<int64_t>(0, end - window), end});
  }
  Exact result = exact_attention(q, k, v, seen, call.overlap, threads_);
  result.shape = queries;
  return result;
}

Exact OpOracle::silu_mul(const OracleCall& call) const {
  check_inputs(call, 2);
  const at::Tensor gate = widened(call.inputs[0]), up = widened(call.inputs[1]);
  const at::Tensor silu = gate / (1 + (-gate).exp());
  Exact result = exact(silu * up);
  result.inner = to_numbers(silu);
  result.factor = to_numbers(up);
  return result;
}

Exact OpOracle::add(const OracleCall& call) const {
  check_inputs(call, 2);
  return exact(widened(call.inputs[0]) + widened(call.inputs[1]));
}

// The experts of each row: [tokens, k] int32, the second input of an op that reads them.
at::Tensor OpOracle::chosen(const OracleCall& call) const {
  const TensorView& index = call.inputs[1];
  const Shape wanted = {std::ssize(call.rows), config_.experts.chosen};
  check(index.dtype == DType::i32 && index.shape == wanted,
        "{} reads the experts of each row as int32 {}, found {} {}: record mlp.experts whole",
        call.place.point->name, wanted.text(), name_of(index.dtype), index.shape.text());
  return to_torch(index).to(weights_.device());
}

Exact OpOracle::softmax(const OracleCall& call) const {
  check_inputs(call, 2);
  const at::Tensor logits = widened(call.inputs[0]), index = chosen(call).to(at::kLong);
  const int64_t experts = config_.experts.count;
  const bool known = logits.dim() == 2 && logits.size(1) == experts &&
                     !((index < 0) | (index >= experts)).any().item<bool>();
  check(known, "{} reads {} logits a row and choices among them, found others: record both whole",
        call.place.point->name, experts);
  const at::Tensor x = logits - logits.amax(-1, /*keepdim=*/true), of_chosen = x.gather(-1, index);
  const at::Tensor& summed = config_.experts.normalised ? of_chosen : x;
  const at::Tensor sum = summed.exp().sum(-1, /*keepdim=*/true);
  Exact result = exact(of_chosen.exp() / sum);
  const at::Tensor mean = (summed.exp() * summed.abs()).sum(-1, /*keepdim=*/true) / sum;
  result.magnitude = to_numbers(of_chosen.abs() + mean);
  result.terms = summed.size(1);
  return result;
}

Exact OpOracle::expert_linear(const OracleCall& call) const {
  check_inputs(call, 2);
  const at::Tensor x = widened(call.inputs[0]);
  at::Tensor magnitude, squares;
  Exact result = exact(
      weights_.experts(call.place, x, chosen(call), &magnitude, call.squares ? &squares : nullptr));
  result.magnitude = to_numbers(magnitude);
  if (call.squares) result.squares = to_numbers(squares);
  result.terms = x.size(-1);
  return result;
}

Exact OpOracle::weighted_sum(const OracleCall& call) const {
  check_inputs(call, 2);
  const at::Tensor x = widened(call.inputs[0]), weights = widened(call.inputs[1]);
  check(x.dim() == 3 && weights.dim() == 2 && weights.size(1) == x.size(1),
        "{} reads a row and a weight for each choice, found tensors {} and {}",
        call.place.point->name, call.inputs[0].shape.text(), call.inputs[1].shape.text());
  const at::Tensor terms = x * weights.unsqueeze(-1);
  Exact result = exact(terms.sum(1));
  result.magnitude = to_numbers(terms.abs().sum(1));
  result.terms = x.size(1);
  return result;
}

Exact OpOracle::evaluate_in_torch(const OracleCall& call) {
  const auto& [p, layer] = call.place;
  check(p != nullptr && (p->per_layer ? layer >= 0 && layer < config_.layers : layer == -1),
        "a place of this model was wanted, found layer {} of {}", layer, config_.layers);
  check(call.dtype == run_,
        "the oracle holds weights in {} and was asked about a run in {}: open it "
        "for that dtype",
        name_of(run_), name_of(call.dtype));
  switch (p->op) {
    case OpKind::gather:
      return gather(call);
    case OpKind::norm:
      return norm(call);
    case OpKind::linear:
      return linear(call);
    case OpKind::rope:
      return rope(call);
    case OpKind::attention:
      return attention(call);
    case OpKind::silu_mul:
      return silu_mul(call);
    case OpKind::add:
      return add(call);
    case OpKind::softmax:
      return softmax(call);
    case OpKind::expert_linear:
      return expert_linear(call);
    case OpKind::weighted_sum:
      return weighted_sum(call);
    case OpKind::cache:
    case OpKind::argmax:
    case OpKind::top_k:
      break;
  }
  fail("{} is exact by its inputs alone, and the oracle has nothing to say about it", p->name);
}

}  // namespace

std::unique_ptr<Oracle> make_oracle(const Checkpoint& checkpoint, const ReferenceOptions& options) {
  family_of(checkpoint.config());
  return std::make_unique<OpOracle>(checkpoint, options);
}

}  // namespace lockstep
