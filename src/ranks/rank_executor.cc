// Ops are told the point that their output has in the whole model, also where it is a partial sum:
// a watch and a seeded fault of an op find it there.
#include "src/ranks/rank_executor.h"

#include <cstring>

namespace lockstep {
namespace {

// A view of that shape into a buffer that is made anew when it is too small.
TensorView room(Tensor& buffer, const Shape& shape, DType dtype) {
  const int64_t bytes = std::max<int64_t>(1, shape.count() * size_of(dtype));
  if (buffer.view().empty() || buffer.view().bytes() < bytes) buffer = Tensor({bytes}, DType::u8);
  return buffer.part(0, shape, dtype);
}

// [rows, ...] as [rows, 1, ...]: the rank's row of the axis of ranks.
TensorView of_one_rank(const TensorView& tensor) {
  const Shape& s = tensor.shape;
  return tensor.reshaped(s.rank() == 2 ? Shape{s[0], 1, s[1]} : Shape{s[0], 1, s[1], s[2]});
}

}  // namespace

void RankExecutor::show_partial(PointName name, const TensorView& tensor) {
  show(name, of_one_rank(tensor));
}

void RankExecutor::add_up(PointName partial, PointName sum, const TensorView& tensor) {
  show_partial(partial, tensor);
  rank_.exchange.all_reduce(at(sum), tensor);
  show(sum, tensor);
}

// Tokens of other ranks' rows are looked up as the first of this one's, and their rows are zeros.
void RankExecutor::embed(const TensorView& table) {
  const TensorView fed = batch_.tokens;
  const TensorView own = room(rank_.tokens, {fed.count()}, DType::i32);
  const auto here = [&](int64_t i) {
    const int64_t row = fed.as<int32_t>()[i] - rank_.plan.mask_first;
    return row >= 0 && row < table.rows() ? row : -1;
  };
  for (int64_t i = 0; i < fed.count(); ++i)
    own.as<int32_t>()[i] = static_cast<int32_t>(std::max<int64_t>(0, here(i)));
  ops_.gather_rows(at("embed"), a_.stream, own, table);
  const int64_t bytes = a_.stream.row_size() * size_of(a_.stream.dtype);
  for (int64_t i = 0; i < fed.count(); ++i)
    if (here(i) < 0) std::memset(a_.stream.as<char>() + i * bytes, 0, bytes);
  add_up("embed.partial", "embed", a_.stream);
  show_angles("rope.cos", a_.rope_cos, batch_.cos);
  show_angles("rope.sin", a_.rope_sin, batch_.sin);
}

void RankExecutor::project(const LayerWeights& w) {
  ops_.matmul(at("attn.o"), a_.branch, flat(a_.attention), w.o, w.o_bias);
  add_up("attn.o_partial", "attn.o", a_.branch);
}

void RankExecutor::down(const LayerWeights& w) {
  ops_.matmul(at("mlp.down"), a_.branch, a_.act, w.down, {});
  add_up("mlp.down_partial", "mlp.down", a_.branch);
}

// clang-format off
void RankExecutor::experts(const LayerWeights& w) {
  Activations& a = a_;
  const auto linear = [&](PointName name, TensorView out, TensorView x, const auto& weights) {
    ops_.expert_matmul(at(name), out, x, a.experts, weights);
  };

  ops_.matmul(at("mlp.router"), a.router, a.norm, w.router, {});     show("mlp.router", a.router);
  ops_.top_k(at("mlp.experts"), a.experts, a.router);                show("mlp.experts", a.experts);
  ops_.routing_weights(at("mlp.weights"), a.weights, a.router, a.experts,
                  config_.experts.normalised);                       show("mlp.weights", a.weights);
  linear("mlp.expert_gate", a.expert_gate, a.norm, w.expert_gate);
                                                             show("mlp.expert_gate", a.expert_gate);
  linear("mlp.expert_up", a.expert_up, a.norm, w.expert_up); show("mlp.expert_up", a.expert_up);
  ops_.silu_mul(at("mlp.expert_act"), a.expert_act, a.expert_gate,
                a.expert_up);                                  show("mlp.expert_act", a.expert_act);
  linear("mlp.expert_down", a.expert_down, a.expert_act, w.expert_down);
  add_up("mlp.expert_down_partial", "mlp.expert_down", a.expert_down);
  ops_.weighted_sum(at("mlp.combine"), a.branch, a.expert_down,
                    a.weights);                                       show("mlp.combine", a.branch);
}
// clang-format on

// Every rank has all logits, and chooses by itself.
Forward RankExecutor::head(const WeightView& lm_head) {
  Activations& a = a_;
  if (a.last.rows() == 0) return {a.logits, a.token};
  const int64_t rows = a.last.rows(), vocab = rank_.plan.vocab.count;
  const TensorView own = room(rank_.partial, {rows, vocab}, a.logits.dtype);
  ops_.gather_rows(at("logits"), a.last, batch_.logit_rows, a.norm);
  ops_.matmul(at("logits"), own, a.last, lm_head, {});
  gather_logits(rows);
  probe_.logits(point("logits"), a.logits);
  ops_.argmax(at("token"), a.token, a.logits);
  probe_.logits(point("token"), a.token);
  return {a.logits, a.token};
}

// Parts of one size are gathered: the last rank's may have fewer columns than there is room for.
void RankExecutor::gather_logits(int64_t rows) {
  const DType dtype = a_.logits.dtype;
  const int64_t room_each = rank_.plan.vocab_room, whole = rank_.plan.whole.vocab;
  const int64_t ranks = rank_.plan.ranks, size = size_of(dtype);
  const int64_t own = rank_.plan.vocab.count;
  Tensor padded({rows, room_each}, dtype);
  std::memset(padded.as<char>(), 0, padded.view().bytes());
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(padded.as<char>() + row * room_each * size,
                rank_.partial.as<char>() + row * own * size, own * size);
  const TensorView parts = room(rank_.parts, {ranks, rows, room_each}, dtype);
  rank_.exchange.all_gather(at("logits"), parts, padded);
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t first = rank * room_each, count = std::min(room_each, whole - first);
      std::memcpy(a_.logits.as<char>() + (row * whole + first) * size,
                  parts.as<char>() + (rank * rows + row) * room_each * size, count * size);
    }
}

}  // namespace lockstep
