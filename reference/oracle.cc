// Each op has a function that computes its exact result in fp64 with LibTorch, straight from the
// paper's formula, and beside it the magnitudes that the judge's budget needs (Exact, in
// src/judge/oracle.h). Roundings on the way happen where the contract has them, as steps whose
// values before the rounding are handed out too. Inputs come in the dtype that was recorded, are
// widened exactly, and are moved to the device that holds the weights, where there is something to
// compute (ReferenceOptions::least). A question that cannot be answered (a wrong count, a wrong
// shape) is an Error before anything is computed.
#include "reference/oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "reference/angle_tables.h"
#include "reference/attention_kernels.h"
#include "reference/bridge.h"
#include "reference/device_copies.h"
#include "reference/exact_attention.h"
#include "reference/exact_pointwise.h"
#include "reference/families.h"
#include "reference/held_weights.h"
#include "reference/measured_rows.h"
#include "reference/own_stream.h"
#include "reference/recipe.h"
#include "reference/rounded_product.h"
#include "reference/rounding.h"
#include "reference/serial_sum.h"
#include "reference/shares.h"
#include "src/judge/no_memory.h"

namespace lockstep {
namespace {

// The numbers that were left where they were computed, for whoever reads single ones.
void bring_all(Exact& e) {
  std::vector<Numbers*> all = {
      &e.want,    &e.magnitude, &e.spread,     &e.spread_squares, &e.weighted_squares,
      &e.score,   &e.angle,     &e.x1c_x2s,    &e.turned,         &e.factor,
      &e.overlap, &e.ties,      &e.tie_squares};
  for (Step& step : e.steps) all.insert(all.end(), {&step.value, &step.slope, &step.other});
  bring(all);
}

// The results of a block of rows on a device, at 100 bytes an element: some thirty fp64 tensors of
// its elements are there at once, for each of up to twelve threads, which is half of what is free
// at the most. Up to 1 GB, larger blocks are quicker: four times as large ones as a bound of the
// memory allows by that still are, as the threads are seldom at their largest together.
int64_t device_block_bytes(const ReferenceOptions& options) {
  constexpr int64_t kLeast = 128 << 20, kMost = int64_t{1} << 30;
  if (!has_attention_kernels()) return kLeast;
  const int64_t free = free_memory(options.gpu) / 64;
  return std::clamp(options.memory > 0 ? std::min(free, options.memory / 16) : free, kLeast, kMost);
}

class OpOracle final : public Oracle {
 public:
  OpOracle(const Checkpoint& checkpoint, const ReferenceOptions& options)
      : config_(checkpoint.config()),
        weights_(checkpoint, options, DType::f64),
        run_(options.dtype),
        threads_(options.threads),
        recipe_(read_recipe(checkpoint.config_text(), checkpoint.dir() + "/config.json")),
        angles_(recipe_),
        copies_(options.memory),
        least_(options.least),
        block_bytes_(on_device() ? device_block_bytes(options) : 0) {}

  Graph graph() const override { return family_of(config_).graph(config_); }
  bool has_bias(const Place& place) const override { return weights_.has_bias(*place.point); }
  int64_t chosen_experts() const override { return config_.experts.chosen; }
  Exact evaluate(const OracleCall& call) override {
    try {
      return answer(call);
    } catch (const NoMemory&) {
      if (!make_room()) throw;
    }
    try {
      return answer(call);
    } catch (const NoMemory&) {
      make_room();
      throw;
    }
  }
  // Where memory is short, what would be held is brought when it is asked for.
  void hold(const TensorView& here, const std::shared_ptr<const void>& owner,
            const TensorView& there) override {
    const at::Device device = weights_.device();
    if (device.is_cpu() || !holds_) return;
    try {
      OwnStream::of_this_thread(device).run([&] { copies_.hold(here, owner, there, device); });
    } catch (const NoMemory&) {
      holds_ = false;
    }
  }
  bool on_device() const override { return !weights_.device().is_cpu(); }
  bool asked_by_several() const override { return on_device(); }
  int64_t least_measured() const override { return least_; }
  int64_t block_bytes() const override { return block_bytes_; }

 private:
  // By a stream of the thread that asks: some ask at once.
  Exact answer(const OracleCall& call);
  // Gives back what could be done without. Returns whether that is more than for a while.
  bool make_room() {
    const bool held = copies_.clear();
    if (held) holds_ = false;
    free_unused(weights_.device());
    return held;
  }
  // Where a question is answered: on the device or here.
  at::Device place_of(const OracleCall& call) const;
  Exact evaluate_in_torch(const OracleCall& call, const at::Device& where);
  Exact gather(const OracleCall& call, const at::Device& where) const;
  Exact angles(const OracleCall& call, const at::Device& where);
  Exact norm(const OracleCall& call, const at::Device& where) const;
  Exact linear(const OracleCall& call, const at::Device& where) const;
  Exact rope(const OracleCall& call, const at::Device& where);
  std::pair<at::Tensor, at::Tensor> keys_values(const OracleCall& call,
                                                const at::Device& where) const;
  Exact attention(const OracleCall& call, const at::Device& where) const;
  Exact softmax(const OracleCall& call, const at::Device& where) const;
  Exact expert_linear(const OracleCall& call, const at::Device& where) const;
  Exact weighted_sum(const OracleCall& call, const at::Device& where) const;
  Exact silu_mul(const OracleCall& call, const at::Device& where) const;
  Exact add(const OracleCall& call, const at::Device& where) const;
  at::Tensor chosen(const OracleCall& call, const at::Device& where) const;
  at::Tensor input(const OracleCall& call, size_t i, const at::Device& where) const {
    const auto owner = i < call.owners.size() ? call.owners[i] : nullptr;
    return as_dtype(copies_.of(call.inputs[i], owner, where), DType::f64);
  }

  const ModelConfig& config_;
  HeldWeights weights_;
  DType run_;
  int threads_;
  Recipe recipe_;
  AngleTables angles_;
  mutable DeviceCopies copies_;
  std::atomic<bool> holds_ = true;
  int64_t least_, block_bytes_;
};

Exact OpOracle::answer(const OracleCall& call) {
  Exact result;
  const at::Device where = place_of(call);
  const DeviceCopies::Reader reader;
  OwnStream::of_this_thread(where).run([&] {
    // Before all else, as others wait for it who read it.
    const auto& [got, owner] = std::tie(call.measure.got, call.measure.owner);
    if (DeviceCopies::keeps(got, owner, where)) copies_.of(got, owner, where);
    result = evaluate_in_torch(call, where);
    if (!call.measure.got.empty()) measure_rows(call, copies_, result);
    bring_all(result);
  });
  return result;
}

// An op that rounds nowhere on the way knows no other contract.
void check_fused(const OracleCall& call) {
  check(call.contract == RoundingContract::fused,
        "{} was asked for under a contract that it does not have: use fused",
        call.place.point->name);
}

// The question must be answerable: a wrong count or shape here would read past a tensor. or_else:
// another count that is right too.
void check_inputs(const OracleCall& call, size_t wanted, size_t or_else = 0) {
  const std::string_view name = call.place.point->name;
  check(call.inputs.size() == wanted || (or_else > 0 && call.inputs.size() == or_else),
        "{} reads {} tensors, found {}: record all of its producers", name, wanted,
        call.inputs.size());
  for (const TensorView& input : call.inputs)
    check(!input.empty() && input.shape.rank() > 0 && input.rows() == std::ssize(call.rows),
          "an input of {} should have the output's {} rows, found a tensor {}", name,
          call.rows.size(), input.shape.text());
  const OpKind op = call.place.point->op;
  if (op != OpKind::silu_mul && op != OpKind::add) return;
  const Shape &a = call.inputs[0].shape, &b = call.inputs[1].shape;
  check(a == b, "{} reads two tensors of one shape, found {} and {}", name, a.text(), b.text());
}

Exact OpOracle::gather(const OracleCall& call, const at::Device& where) const {
  check_fused(call);
  check(call.tokens.size() == call.rows.size(), "{} needs a token for each of {} rows, found {}",
        call.place.point->name, call.rows.size(), call.tokens.size());
  return exact_of(weights_.embedding(call.tokens, where), call.contract);
}

// cos and sin of the rows' positions, with the error that fp32 steps may have made of each angle.
Exact OpOracle::angles(const OracleCall& call, const at::Device& where) {
  check_fused(call);
  const AngleTables::OfRows tables = angles_.of(call, where);
  const bool cosine = *call.place.point == point("rope.cos");
  Exact result = exact_of(cosine ? tables.cos : tables.sin, call.contract);
  result.angle = held_numbers(tables.error);
  // d cos / d angle = -sin, so that its size is what an error of the angle is multiplied by.
  result.turned = held_numbers((cosine ? tables.sin : tables.cos).abs());
  return result;
}

Exact OpOracle::norm(const OracleCall& call, const at::Device& where) const {
  check_inputs(call, 1, is_of_sum(call.contract) ? 2 : 0);
  at::Tensor x = input(call, 0, where);
  // A fused addition and norm, under contracts that keep the sum unrounded: both terms are read.
  if (call.inputs.size() == 2) x = x + input(call, 1, where);
  const at::Tensor weight = weights_.norm(call.place, where);
  check(x.size(-1) == weight.size(0), "{} norms {} values, found a tensor {}",
        call.place.point->name, weight.size(0), shape_of(x).text());
  Exact result = exact_norm(x, weight, recipe_.norm_eps, call.contract, Grid::of(run_));
  result.terms = weight.size(0);
  if (run_ != DType::f32) result.serial_error = errors_of_serial_squares(x);
  return result;
}

Exact OpOracle::linear(const OracleCall& call, const at::Device& where) const {
  check_inputs(call, 1);
  at::Tensor x = input(call, 0, where).flatten(1);
  at::Tensor magnitude, halves;
  at::Tensor y = product_under(
      call.contract, x, magnitude, halves,
      [&](const at::Tensor& operand, at::Tensor* size, const HeldWeights::Tf32* tf32) {
        return weights_.product(call.place, operand, size, tf32);
      });
  std::vector<Step> steps;
  if (has_bias(call.place)) {
    const at::Tensor bias = weights_.bias(call.place);
    // A product that is stored before another kernel adds the bias: two roundings.
    if (call.contract == RoundingContract::bias_after_store) {
      steps = {{held_numbers(y), {}, {}}};
      y = Grid::of(run_).rounded(y);
    }
    y = y + bias;
    magnitude = magnitude + bias.abs();
  }
  Exact result = exact_of(y, call.contract);
  result.magnitude = held_numbers(magnitude);
  result.steps = std::move(steps);
  put_halves(halves, result);
  result.terms = x.size(1);
  const Point& p = *call.place.point;
  const bool q = p == point("attn.q");
  if (q || p == point("attn.k") || p == point("attn.v"))
    result.shape = {x.size(0), q ? recipe_.heads : recipe_.kv_heads, recipe_.head_dim};
  return result;
}

Exact OpOracle::rope(const OracleCall& call, const at::Device& where) {
  check_inputs(call, 1, 3);
  const at::Tensor x = input(call, 0, where);
  const int64_t pairs = recipe_.head_dim / 2;
  const AngleTables::OfRows tables = angles_.of(call, where);
  at::Tensor cos = tables.cos, sin = tables.sin;
  check(x.dim() == 3 && x.size(2) == recipe_.head_dim, "{} turns heads of {} values, found {}",
        call.place.point->name, recipe_.head_dim, shape_of(x).text());
  if (call.inputs.size() == 3) {
    for (const size_t i : {size_t{1}, size_t{2}})
      check(
          call.inputs[i].shape == Shape({x.size(0), pairs}),
          "{} reads rotary tables of {} pairs a row, found {}: record rope.cos and rope.sin whole",
          call.place.point->name, pairs, call.inputs[i].shape.text());
    // Tables that were recorded are taken for right: they have been judged as ops of their own.
    cos = input(call, 1, where);
    sin = input(call, 2, where);
  }
  return exact_rope(x, cos, sin, tables.error, call.contract, Grid::of(run_));
}

// K and V of an attention, [length, kv heads, head_dim] each.
std::pair<at::Tensor, at::Tensor> OpOracle::keys_values(const OracleCall& call,
                                                        const at::Device& where) const {
  const int64_t kv = recipe_.kv_heads;
  if (const auto* held = static_cast<const at::Tensor*>(call.held_keys_values.tensor.get())) {
    const Shape cached = {held->size(0), 2, kv, recipe_.head_dim};
    check(shape_of(*held) == cached, "attention reads K and V of shape {}, found {}", cached.text(),
          shape_of(*held).text());
    const at::Tensor both = as_dtype(*held, DType::f64).to(where);
    return {both.select(1, 0), both.select(1, 1)};
  }
  const auto& [k, v] = call.keys_values;
  const Shape cached = {k.empty() ? 0 : k.rows(), kv, recipe_.head_dim};
  check(!k.empty() && !v.empty() && k.shape == cached && v.shape == cached,
        "attention reads K and V of shape {}, found {} and {}", cached.text(), k.shape.text(),
        v.shape.text());
  return {as_dtype(to_torch(k, where), DType::f64), as_dtype(to_torch(v, where), DType::f64)};
}

Exact OpOracle::attention(const OracleCall& call, const at::Device& where) const {
  if (call.inputs.size() == 2 && call.inputs[0].shape.rank() == 4)  // of the shares
    return exact_merge(input(call, 0, where), input(call, 1, where), call.contract);
  const int64_t tokens = std::ssize(call.rows), heads = recipe_.heads, kv = recipe_.kv_heads;
  const Shape queries = {tokens, heads, recipe_.head_dim};
  check(!call.inputs.empty() && !call.inputs[0].empty() && call.inputs[0].shape == queries,
        "attention of {} rows reads queries {}, and was given others: record attn.q_rope whole",
        tokens, queries.text());
  const auto [keys, values] = keys_values(call, where);
  const int64_t length = keys.size(0);
  for (const Row& row : call.rows)
    check(row.position >= 0 && row.position < length,
          "attention at position {} reads the keys up to it, found {} keys", row.position, length);

  // Query heads of one K/V head are neighbours: head h reads h / (heads / kv).
  const at::Tensor q = input(call, 0, where).view({tokens, kv, heads / kv, -1});
  const at::Tensor k = keys.transpose(0, 1), v = values.transpose(0, 1);
  std::vector<KeyRange> seen;
  const int64_t window = recipe_.window.at(call.place.layer);
  for (const Row& row : call.rows) {
    const int64_t end = row.position + 1;
    seen.push_back({window == 0 ? 0 : std::max<int64_t>(0, end - window), end});
  }
  const AttentionCall how = {call.contract, run_, threads_, call.for_budget};
  if (const OpKind op = call.place.point->op; op != OpKind::attention)
    return exact_shares(op == OpKind::partial_attention, q, k, v, seen, call.shares, how);
  Exact result = exact_attention(q, k, v, seen, how);
  result.shape = queries;
  return result;
}

Exact OpOracle::silu_mul(const OracleCall& call, const at::Device& where) const {
  check_inputs(call, 2);
  const at::Tensor gate = input(call, 0, where), up = input(call, 1, where);
  return exact_silu_mul(gate, up, call.contract, Grid::of(run_));
}

Exact OpOracle::add(const OracleCall& call, const at::Device& where) const {
  check_fused(call);
  check_inputs(call, 2);
  return exact_of(input(call, 0, where) + input(call, 1, where), call.contract);
}

// The experts of each row: [tokens, k] int32, the last input of an op that reads them.
at::Tensor OpOracle::chosen(const OracleCall& call, const at::Device& where) const {
  const TensorView& index = call.inputs.back();
  const Shape wanted = {std::ssize(call.rows), config_.experts.chosen};
  check(index.dtype == DType::i32 && index.shape == wanted,
        "{} reads the experts of each row as int32 {}, found {} {}: record mlp.experts whole",
        call.place.point->name, wanted.text(), name_of(index.dtype), index.shape.text());
  return to_torch(index).to(where);
}

Exact OpOracle::softmax(const OracleCall& call, const at::Device& where) const {
  check_inputs(call, 2);
  const at::Tensor logits = input(call, 0, where), index = chosen(call, where).to(at::kLong);
  const int64_t experts = config_.experts.count;
  check_fused(call);
  const bool known = logits.dim() == 2 && logits.size(1) == experts &&
                     !((index < 0) | (index >= experts)).any().item<bool>();
  check(known, "{} reads {} logits a row and choices among them, found others: record both whole",
        call.place.point->name, experts);
  // Shifted by the largest, so that no exponential overflows.
  const at::Tensor x = logits - logits.amax(-1, /*keepdim=*/true), of_chosen = x.gather(-1, index);
  const at::Tensor& summed = recipe_.normalises_experts ? of_chosen : x;
  const at::Tensor sum = summed.exp().sum(-1, /*keepdim=*/true);
  Exact result = exact_of(of_chosen.exp() / sum, call.contract);
  // An error d in every exponent x moves w = e^x / sum by w (d |x| + mean of d |x|), the mean by
  // weights: that is what `magnitude` multiplies.
  const at::Tensor mean = (summed.exp() * summed.abs()).sum(-1, /*keepdim=*/true) / sum;
  result.magnitude = held_numbers(of_chosen.abs() + mean);
  result.terms = summed.size(1);
  return result;
}

Exact OpOracle::expert_linear(const OracleCall& call, const at::Device& where) const {
  check_inputs(call, 2);
  const at::Tensor x = input(call, 0, where), experts = chosen(call, where);
  at::Tensor magnitude, halves;
  const at::Tensor y = product_under(
      call.contract, x, magnitude, halves,
      [&](const at::Tensor& operand, at::Tensor* size, const HeldWeights::Tf32* tf32) {
        return weights_.experts(call.place, operand, experts, size, tf32);
      });
  Exact result = exact_of(y, call.contract);
  result.magnitude = held_numbers(magnitude);
  put_halves(halves, result);
  result.terms = x.size(-1);
  return result;
}

Exact OpOracle::weighted_sum(const OracleCall& call, const at::Device& where) const {
  check_inputs(call, 3);
  const at::Tensor x = input(call, 0, where), weights = input(call, 1, where);
  check(x.dim() == 3 && weights.dim() == 2 && weights.size(1) == x.size(1),
        "{} reads a row and a weight for each choice, found tensors {} and {}",
        call.place.point->name, call.inputs[0].shape.text(), call.inputs[1].shape.text());
  at::Tensor terms = x * weights.unsqueeze(-1);
  const Grid grid = Grid::of(run_);
  if (call.contract != RoundingContract::fused) terms = grid.rounded(terms);
  at::Tensor sum = terms.sum(1);
  // Transformers loops over experts by number and calls index_add_ on the result, which rounds each
  // partial sum.
  if (call.contract == RoundingContract::hf) {
    // Expert after expert is added to what is stored.
    const at::Tensor experts = chosen(call, where);
    const at::Tensor order =
        experts.argsort(int64_t{1}, /*descending=*/false).unsqueeze(-1).expand_as(terms);
    const at::Tensor ordered = terms.gather(1, order);
    sum = ordered.select(1, 0);
    for (int64_t k = 1; k < ordered.size(1); ++k)
      sum = (k == 1 ? sum : grid.rounded(sum)) + ordered.select(1, k);
  }
  Exact result = exact_of(sum, call.contract);
  result.magnitude = held_numbers(terms.abs().sum(1));
  result.terms = x.size(1);
  return result;
}

// An op of few elements that reads no large weight is answered here: the numbers that it reads are
// here, and those that come of them are to be brought here. Rows that are measured stand beside
// those of models, which are there, however few of them a block or a part of it has.
at::Device OpOracle::place_of(const OracleCall& call) const {
  const at::Device host(at::kCPU), device = weights_.device();
  if (device.is_cpu() || !call.place.point || !call.measure.got.empty()) return device;
  int64_t elements = 0;
  for (const TensorView& input : call.inputs) elements = std::max(elements, input.count());
  switch (call.place.point->op) {
    case OpKind::gather:
      elements = std::ssize(call.tokens) * config_.hidden;
      break;
    case OpKind::angles:
      elements = std::ssize(call.rows) * recipe_.head_dim / 2;
      break;
    case OpKind::norm:
    case OpKind::rope:
    case OpKind::silu_mul:
    case OpKind::add:
    case OpKind::weighted_sum:
      break;
    default:
      return device;
  }
  return elements < least_measured() ? host : device;
}

Exact OpOracle::evaluate_in_torch(const OracleCall& call, const at::Device& where) {
  const auto& [p, layer] = call.place;
  check(p != nullptr && (p->per_layer ? layer >= 0 && layer < config_.layers : layer == -1),
        "a place of this model was wanted, found layer {} of {}", layer, config_.layers);
  check(call.dtype == run_,
        "the oracle holds weights in {} and was asked about a run in {}: open it "
        "for that dtype",
        name_of(run_), name_of(call.dtype));
  switch (p->op) {
    case OpKind::gather:
      return gather(call, where);
    case OpKind::angles:
      return angles(call, where);
    case OpKind::norm:
      return norm(call, where);
    case OpKind::linear:
      return linear(call, where);
    case OpKind::rope:
      return rope(call, where);
    case OpKind::partial_attention:
    case OpKind::log_sum_exp:
    case OpKind::attention:
      return attention(call, where);
    case OpKind::silu_mul:
      return silu_mul(call, where);
    case OpKind::add:
      return add(call, where);
    case OpKind::softmax:
      return softmax(call, where);
    case OpKind::expert_linear:
      return expert_linear(call, where);
    case OpKind::weighted_sum:
      return weighted_sum(call, where);
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
