// An instruction copies its columns out of a pass's tensors, computes them by the model's ops, and
// copies them back, so that ops need not know of parts of rows. A product of some columns is a call
// of its own, which may add in another order than one call of all does.
#include "src/instructions/step_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// Columns [begin, begin + part's width) of a tensor, as [rows, width], from or to a tensor of their
// own.
void put_columns(const TensorView& whole, int64_t begin, const TensorView& part) {
  const int64_t size = size_of(whole.dtype), to = whole.row_size() * size;
  const int64_t bytes = part.row_size() * size;
  for (int64_t row = 0; row < part.rows(); ++row)
    std::memcpy(whole.as<char>() + row * to + begin * size, part.as<char>() + row * bytes,
                static_cast<size_t>(bytes));
}

void take_columns(const TensorView& part, const TensorView& whole, int64_t begin) {
  const int64_t size = size_of(whole.dtype), from = whole.row_size() * size;
  const int64_t bytes = part.row_size() * size;
  for (int64_t row = 0; row < part.rows(); ++row)
    std::memcpy(part.as<char>() + row * bytes, whole.as<char>() + row * from + begin * size,
                static_cast<size_t>(bytes));
}

// Rounds twice at most: an fp64 value to fp32, as accumulators hold it, and that to the dtype.
void store(const TensorView& tensor, int64_t i, double x) {
  const auto rounded = static_cast<float>(x);
  switch (tensor.dtype) {
    case DType::f32:
      tensor.as<float>()[i] = rounded;
      break;
    case DType::bf16:
      tensor.as<BFloat16>()[i] = from_float<BFloat16>(rounded);
      break;
    default:
      tensor.as<Float16>()[i] = from_float<Float16>(rounded);
  }
}

// Calls body(choice, begin, end) for each choice of which an instruction holds rows [begin, end) of
// the `rows` that each has.
template <typename Body>
void by_choice(const Instruction& in, int64_t rows, Body body) {
  for (int64_t choice = in.begin / rows; choice * rows < in.end; ++choice)
    body(choice, std::max(in.begin - choice * rows, int64_t{0}),
         std::min(in.end - choice * rows, rows));
}

// The keys of a request that one share of its pages holds and one query sees.
struct Keys {
  int64_t begin, end;
};

}  // namespace

void StepOps::compute(const Instruction& in) const {
  switch (in.opcode) {
    case Opcode::norm_qkv_rope_append:
      return norm_qkv_rope_append(in);
    case Opcode::partial_attention:
      return partial_attention(in);
    case Opcode::attention_reduction:
      return attention_reduction(in);
    case Opcode::o_residual:
      return o_residual(in);
    case Opcode::norm_gate_up_silu:
      return norm_gate_up_silu(in);
    case Opcode::down_residual:
      return down_residual(in);
    case Opcode::norm_route:
      return norm_route(in);
    case Opcode::expert_gate_up_silu:
      return expert_gate_up_silu(in);
    case Opcode::expert_down:
      return expert_down(in);
    case Opcode::combine_residual:
      return combine_residual(in);
    case Opcode::norm_head:
      return norm_head(in);
    case Opcode::other:
      fail("{} has an opcode that nobody here computes", said(in));
  }
}

// Each instruction that needs the norm computes all of it, as its opcode says, and so waits for no
// other that would store it.
Tensor StepOps::norm_for(const Instruction& in, const OpContext& context, const TensorView& stream,
                         const TensorView& weight, const TensorView& stored) const {
  Tensor norm = fresh(stream.rows(), stream.row_size());
  pass_.model.ops().rms_norm(context, norm, stream, weight, static_cast<float>(config_.norm_eps));
  if (in.begin == 0 && !stored.empty()) put_columns(stored, 0, norm);
  return norm;
}

Tensor StepOps::product(const OpContext& context, const TensorView& x, const WeightView& weight,
                        const TensorView& bias, int64_t begin, int64_t end) const {
  Tensor out = fresh(x.rows(), end - begin);
  pass_.model.ops().matmul(context, out, x,
                           plain_codes("an instruction", weight).slice(begin, end - begin),
                           bias.empty() ? bias : bias.slice(begin, end - begin));
  return out;
}

void StepOps::norm_qkv_rope_append(const Instruction& in) const {
  const PassTensors::Layer& layer = t_.layers[in.layer];
  const Tensor norm =
      norm_for(in, at("attn.norm", in.layer), layer.in, layer.attn_norm_weight, layer.attn_norm);
  for (int64_t head = in.begin / config_.head_dim; head < in.end / config_.head_dim; ++head) {
    if (head < config_.heads)
      query_head(layer, norm, head);
    else if (head < config_.heads + config_.kv_heads)
      key_head(layer, norm, head - config_.heads);
    else
      value_head(layer, norm, head - config_.heads - config_.kv_heads);
  }
}

Tensor StepOps::roped(const PassTensors::Layer& layer, const TensorView& head, bool of_q,
                      int64_t place) const {
  const int at_layer = layer_of(layer);
  const Shape shape = {tokens(), 1, config_.head_dim};
  const int64_t column = place * config_.head_dim;
  Tensor normed;
  TensorView x = head;
  if (config_.qk_norm) {
    normed = fresh(tokens(), config_.head_dim);
    pass_.model.ops().rms_norm(of_q ? at("attn.q_norm", at_layer) : at("attn.k_norm", at_layer),
                               normed.view().reshaped(shape), head.reshaped(shape),
                               of_q ? layer.weights->q_norm : layer.weights->k_norm,
                               static_cast<float>(config_.norm_eps));
    put_columns(of_q ? layer.q_norm : layer.k_norm, column, normed);
    x = normed;
  }
  Tensor out = fresh(tokens(), config_.head_dim);
  const Batch& batch = pass_.batch;
  pass_.model.ops().rope(of_q ? at("attn.q_rope", at_layer) : at("attn.k_rope", at_layer),
                         out.view().reshaped(shape), x.reshaped(shape), batch.cos, batch.sin,
                         batch.positions);
  put_columns(of_q ? layer.q_rope : layer.k_rope, column, out);
  return out;
}

void StepOps::query_head(const PassTensors::Layer& layer, const TensorView& norm,
                         int64_t head) const {
  const int64_t dim = config_.head_dim;
  const Tensor q = product(at("attn.q", layer_of(layer)), norm, layer.weights->q,
                           layer.weights->q_bias, head * dim, (head + 1) * dim);
  put_columns(layer.q, head * dim, q);
  roped(layer, q, /*of_q=*/true, head);
}

// A slot of the cache holds all KV heads of a token.
void append_to_cache(const TensorView& side, const TensorView& slots, int64_t head,
                     const TensorView& rows) {
  const int64_t bytes = rows.row_size() * size_of(rows.dtype);
  const int64_t heads = side.shape[2];
  for (int64_t token = 0; token < rows.rows(); ++token) {
    const int64_t slot = slots.as<int64_t>()[token];
    // A token without a slot is written nowhere, as kv_write leaves it out.
    if (slot < 0) continue;
    std::memcpy(side.as<char>() + (slot * heads + head) * bytes, rows.as<char>() + token * bytes,
                static_cast<size_t>(bytes));
  }
}

void StepOps::key_head(const PassTensors::Layer& layer, const TensorView& norm,
                       int64_t head) const {
  const int64_t dim = config_.head_dim;
  const Tensor k = product(at("attn.k", layer_of(layer)), norm, layer.weights->k,
                           layer.weights->k_bias, head * dim, (head + 1) * dim);
  put_columns(layer.k, head * dim, k);
  append_to_cache(layer.cache.k, pass_.batch.slots, head, roped(layer, k, /*of_q=*/false, head));
}

void StepOps::value_head(const PassTensors::Layer& layer, const TensorView& norm,
                         int64_t head) const {
  const int64_t dim = config_.head_dim;
  const Tensor v = product(at("attn.v", layer_of(layer)), norm, layer.weights->v,
                           layer.weights->v_bias, head * dim, (head + 1) * dim);
  put_columns(layer.v, head * dim, v);
  append_to_cache(layer.cache.v, pass_.batch.slots, head, v);
}

void StepOps::partial_attention(const Instruction& in) const {
  for (int64_t head = in.begin; head < in.end; ++head) attend(in, head);
}

// Source: Milakov and Gimelshein 2018, the state of an online softmax of a share of the keys, in
// its normalised form (Dao et al. 2023, Flash-Decoding).
void StepOps::attend(const Instruction& in, int64_t kv_head) const {
  const PassTensors::Layer& layer = t_.layers[in.layer];
  const AttentionBatch batch = pass_.batch.attention();
  const auto* start = batch.query_start.as<int32_t>();
  const auto* length = batch.context_length.as<int32_t>();
  const int64_t dim = config_.head_dim, group = config_.heads / config_.kv_heads;
  const int64_t page_size = layer.cache.page_size(), window = config_.window[in.layer];
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  std::vector<double> scores, sum(static_cast<size_t>(dim));
  for (int64_t r = 0; r < batch.context_length.rows(); ++r) {
    const auto* table = batch.page_table.as<int32_t>() + r * batch.page_table.shape[1];
    const int64_t pages = (length[r] + page_size - 1) / page_size;
    const int64_t first = pages * in.share / schedule_.kv_shares * page_size;
    const int64_t end = pages * (in.share + 1) / schedule_.kv_shares * page_size;
    for (int64_t token = start[r]; token < start[r + 1]; ++token) {
      const int64_t position = length[r] - (start[r + 1] - token);
      // Shares are whole pages; a share may hold no key that the query sees, and has a weight of 0
      // then.
      const Keys keys = {window > 0 ? std::max(first, position - window + 1) : first,
                         std::min(end, position + 1)};
      const auto row_of = [&](int64_t key) {
        const int64_t slot = table[key / page_size] * page_size + key % page_size;
        return (slot * config_.kv_heads + kv_head) * dim;
      };
      for (int64_t h = 0; h < group; ++h) {
        const int64_t head = kv_head * group + h, query = (token * config_.heads + head) * dim;
        const int64_t place = share_place(in.share, token, head);
        double most = -std::numeric_limits<double>::infinity(), weight = 0;
        scores.clear();
        for (int64_t key = keys.begin; key < keys.end; ++key) {
          double dot = 0;
          const int64_t row = row_of(key);
          for (int64_t d = 0; d < dim; ++d)
            dot += value_at(layer.q_rope, query + d) * value_at(layer.cache.k, row + d);
          scores.push_back(dot * scale);
          // A NaN stays one.
          most = scores.back() <= most ? most : scores.back();
        }
        std::ranges::fill(sum, 0.0);
        for (int64_t key = keys.begin; key < keys.end; ++key) {
          const double p = std::exp(scores[key - keys.begin] - most);
          const int64_t row = row_of(key);
          weight += p;
          for (int64_t d = 0; d < dim; ++d) sum[d] += p * value_at(layer.cache.v, row + d);
        }
        for (int64_t d = 0; d < dim; ++d)
          store(layer.partial, place * dim + d, weight == 0 ? 0 : sum[d] / weight);
        store(layer.lse, place, weight == 0 ? most : most + std::log(weight));
      }
    }
  }
}

void StepOps::attention_reduction(const Instruction& in) const {
  for (int64_t head = in.begin; head < in.end; ++head) merge(in, head);
}

// Shares weigh exp(lse), beside the largest of them, so that no exponential overflows; one that no
// key was seen in counts nothing, whatever its partial result.
void StepOps::merge(const Instruction& in, int64_t kv_head) const {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const int64_t dim = config_.head_dim, group = config_.heads / config_.kv_heads;
  const PassTensors::Layer& layer = t_.layers[in.layer];
  std::vector<double> sum(static_cast<size_t>(dim));
  for (int64_t token = 0; token < tokens(); ++token)
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      double most = kNever, weight = 0;
      for (int64_t share = 0; share < schedule_.kv_shares; ++share) {
        const double lse = value_at(layer.lse, share_place(share, token, head));
        most = lse <= most ? most : lse;
      }
      std::ranges::fill(sum, 0.0);
      for (int64_t share = 0; share < schedule_.kv_shares; ++share) {
        const int64_t place = share_place(share, token, head);
        const double lse = value_at(layer.lse, place);
        if (lse == kNever) continue;  // no key of that share is seen
        const double rescale = std::exp(lse - most);
        weight += rescale;
        for (int64_t d = 0; d < dim; ++d)
          sum[d] += rescale * value_at(layer.partial, place * dim + d);
      }
      const int64_t at = (token * config_.heads + head) * dim;
      for (int64_t d = 0; d < dim; ++d) store(layer.out, at + d, weight == 0 ? 0 : sum[d] / weight);
    }
}

void StepOps::add_to_stream(PointName name, const Instruction& in, const TensorView& sum,
                            const TensorView& stream, const TensorView& branch) const {
  Tensor before = fresh(tokens(), in.end - in.begin), after = fresh(tokens(), in.end - in.begin);
  take_columns(before, stream, in.begin);
  pass_.model.ops().add(at(name, in.layer), after, before, branch);
  put_columns(sum, in.begin, after);
}

void StepOps::o_residual(const Instruction& in) const {
  const PassTensors::Layer& layer = t_.layers[in.layer];
  const Tensor o = product(at("attn.o", in.layer), flat(layer.out), layer.weights->o,
                           layer.weights->o_bias, in.begin, in.end);
  put_columns(layer.o, in.begin, o);
  add_to_stream("attn.residual", in, layer.attn_residual, layer.in, o);
}

void StepOps::norm_gate_up_silu(const Instruction& in) const {
  const PassTensors::Layer& layer = t_.layers[in.layer];
  const Tensor norm = norm_for(in, at("mlp.norm", in.layer), layer.attn_residual,
                               layer.mlp_norm_weight, layer.mlp_norm);
  const Tensor gate =
      product(at("mlp.gate", in.layer), norm, layer.weights->gate, {}, in.begin, in.end);
  const Tensor up = product(at("mlp.up", in.layer), norm, layer.weights->up, {}, in.begin, in.end);
  const Tensor act = fresh(tokens(), in.end - in.begin);
  pass_.model.ops().silu_mul(at("mlp.act", in.layer), act, gate, up);
  put_columns(layer.gate, in.begin, gate);
  put_columns(layer.up, in.begin, up);
  put_columns(layer.act, in.begin, act);
}

void StepOps::down_residual(const Instruction& in) const {
  const PassTensors::Layer& layer = t_.layers[in.layer];
  const Tensor down =
      product(at("mlp.down", in.layer), layer.act, layer.weights->down, {}, in.begin, in.end);
  put_columns(layer.down, in.begin, down);
  add_to_stream("mlp.residual", in, layer.mlp_residual, layer.attn_residual, down);
}

void StepOps::norm_route(const Instruction& in) const {
  const PassTensors::Layer& layer = t_.layers[in.layer];
  const Tensor norm = norm_for(in, at("mlp.norm", in.layer), layer.attn_residual,
                               layer.mlp_norm_weight, layer.mlp_norm);
  put_columns(
      layer.router, in.begin,
      product(at("mlp.router", in.layer), norm, layer.weights->router, {}, in.begin, in.end));
  const Ops& ops = pass_.model.ops();
  ops.top_k(at("mlp.experts", in.layer), layer.experts, layer.router);
  ops.routing_weights(at("mlp.weights", in.layer), layer.expert_weights, layer.router,
                      layer.experts, config_.experts.normalised);
}

// A choice that nobody has made yet, which a schedule that is wrong may read, gives NaN.
Tensor StepOps::expert_product(const OpContext& context, const TensorView& x,
                               const TensorView& experts, int64_t choice,
                               const std::vector<TensorView>& weights, int64_t begin,
                               int64_t end) const {
  const Tensor chosen({tokens(), 1}, DType::i32, Device::cpu);
  take_columns(chosen, experts, choice);
  std::vector<int64_t> unknown;
  for (int64_t token = 0; token < tokens(); ++token)
    if (int32_t& expert = chosen.as<int32_t>()[token]; expert < 0)
      expert = 0, unknown.push_back(token);
  std::vector<TensorView> rows;
  for (const TensorView& weight : weights) rows.push_back(weight.slice(begin, end - begin));
  Tensor out = fresh(tokens(), end - begin);
  pass_.model.ops().expert_matmul(context, out.view().reshaped({tokens(), 1, end - begin}), x,
                                  chosen, rows);
  const int64_t bytes = out.view().row_size() * size_of(out.view().dtype);
  for (const int64_t token : unknown)
    std::memset(out.as<char>() + token * bytes, 0xff, static_cast<size_t>(bytes));
  return out;
}

void StepOps::expert_gate_up_silu(const Instruction& in) const {
  const PassTensors::Layer& layer = t_.layers[in.layer];
  const Tensor norm =
      norm_for(in, at("mlp.norm", in.layer), layer.attn_residual, layer.mlp_norm_weight, {});
  const int64_t rows = config_.experts.intermediate;
  by_choice(in, rows, [&](int64_t choice, int64_t begin, int64_t end) {
    const auto linear = [&](PointName name, const std::vector<TensorView>& weights) {
      return expert_product(at(name, in.layer), norm, layer.experts, choice, weights, begin, end);
    };
    const Tensor gate = linear("mlp.expert_gate", layer.weights->expert_gate);
    const Tensor up = linear("mlp.expert_up", layer.weights->expert_up);
    const Tensor act = fresh(tokens(), end - begin);
    pass_.model.ops().silu_mul(at("mlp.expert_act", in.layer), act, gate, up);
    put_columns(layer.expert_gate, choice * rows + begin, gate);
    put_columns(layer.expert_up, choice * rows + begin, up);
    put_columns(layer.expert_act, choice * rows + begin, act);
  });
}

void StepOps::expert_down(const Instruction& in) const {
  const PassTensors::Layer& layer = t_.layers[in.layer];
  const int64_t inputs = config_.experts.intermediate;
  by_choice(in, config_.hidden, [&](int64_t choice, int64_t begin, int64_t end) {
    const Tensor act = fresh(tokens(), inputs);
    take_columns(act, layer.expert_act, choice * inputs);
    put_columns(layer.expert_down, choice * config_.hidden + begin,
                expert_product(at("mlp.expert_down", in.layer), act, layer.experts, choice,
                               layer.weights->expert_down, begin, end));
  });
}

void StepOps::combine_residual(const Instruction& in) const {
  const PassTensors::Layer& layer = t_.layers[in.layer];
  const int64_t width = in.end - in.begin, chosen = config_.experts.chosen;
  const Tensor down({tokens(), chosen, width}, pass_.model.dtype(), Device::cpu);
  const Tensor one = fresh(tokens(), width), sum = fresh(tokens(), width);
  for (int64_t choice = 0; choice < chosen; ++choice) {
    take_columns(one, layer.expert_down, choice * config_.hidden + in.begin);
    put_columns(down, choice * width, one);
  }
  pass_.model.ops().weighted_sum(at("mlp.combine", in.layer), sum, down, layer.expert_weights);
  put_columns(layer.combined, in.begin, sum);
  add_to_stream("mlp.residual", in, layer.mlp_residual, layer.attn_residual, sum);
}

void StepOps::norm_head(const Instruction& in) const {
  const Tensor norm = norm_for(in, at("final.norm", -1), t_.layers.back().mlp_residual,
                               t_.final_norm_weight, t_.final_norm);
  const TensorView& rows = pass_.batch.logit_rows;
  if (rows.count() == 0) return;
  const Tensor last = fresh(rows.count(), config_.hidden);
  pass_.model.ops().gather_rows(at("logits", -1), last, rows, norm);
  put_columns(t_.logits, in.begin,
              product(at("logits", -1), last, t_.lm_head, {}, in.begin, in.end));
}

}  // namespace lockstep
