// Ops are told the point that their output has in the whole model, also where it is a partial sum:
// a watch and a seeded fault of an op find it there.
#include "src/ranks/rank_executor.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lockstep {
namespace {

// A view of that shape into a buffer that is made anew when it is too small: where passes are not
// captured, of memory that the device has given before. What is queued is done before its memory is
// another's (DeviceRuntime::allocate).
TensorView room(Tensor& buffer, const Shape& shape, DType dtype, Device device) {
  const int64_t bytes = std::max<int64_t>(1, shape.count() * size_of(dtype));
  if (buffer.view().empty() || buffer.view().bytes() < bytes)
    buffer = Tensor({bytes}, DType::u8, device);
  return buffer.part(0, shape, dtype);
}

// `count` elements from the one of that number on.
TensorView stretch(const TensorView& tensor, int64_t first, int64_t count) {
  return {.data = tensor.as<char>() + first * size_of(tensor.dtype),
          .dtype = tensor.dtype,
          .device = tensor.device,
          .shape = {count}};
}

// [rows, ...] as [rows, 1, ...]: the rank's row of the axis of ranks.
TensorView of_one_rank(const TensorView& tensor) {
  const Shape& s = tensor.shape;
  return tensor.reshaped(s.rank() == 2 ? Shape{s[0], 1, s[1]} : Shape{s[0], 1, s[1], s[2]});
}

int64_t lookup_room(int64_t tokens) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)));
}

// With the row of zeros in it.
RankLookup empty_lookup(const RankParts& rank, int64_t tokens) {
  const int64_t hidden = rank.plan.whole.hidden;
  RankLookup lookup{.rows = Tensor({tokens}, DType::i32, rank.device),
                    .taken = Tensor({tokens}, DType::i32, rank.device),
                    .found = Tensor({tokens + 1, hidden}, rank.dtype, rank.device)};
  const Tensor zeros({1, hidden}, rank.dtype);
  std::memset(zeros.view().data, 0, zeros.view().bytes());
  copy(lookup.found.view().slice(tokens, 1), zeros);
  return lookup;
}

}  // namespace

// Rows that pad a pass look up the first token.
void prepare_lookup(RankParts& rank, const Batch& batch) {
  const int64_t tokens = batch.size(), room = lookup_room(tokens);
  auto found = rank.lookups.find(room);
  if (found == rank.lookups.end())
    found = rank.lookups.emplace(room, empty_lookup(rank, room)).first;
  const Tensor rows({room}, DType::i32), taken({room}, DType::i32);
  for (int64_t i = 0; i < room; ++i) {
    const int64_t row = (i < tokens ? batch.tokens.as<int32_t>()[i] : 0) - rank.plan.mask_first;
    const bool here = row >= 0 && row < rank.plan.vocab.count;
    rows.as<int32_t>()[i] = here ? static_cast<int32_t>(row) : 0;
    taken.as<int32_t>()[i] = static_cast<int32_t>(here ? i : room);
  }
  copy(found->second.rows, rows);
  copy(found->second.taken, taken);
}

void RankExecutor::show_partial(PointName name, const TensorView& tensor) {
  show(name, of_one_rank(tensor));
}

// Where all of a pass is looked at in the end, what is added stays beside the sum.
void RankExecutor::add_up(PointName partial, PointName sum, const TensorView& tensor) {
  const bool of_experts = tensor.shape.rank() == 3;
  const TensorView kept = of_experts ? a_.expert_partial : a_.partial;
  if (!kept.empty()) copy(kept, tensor);
  show_partial(partial, kept.empty() ? tensor : kept);
  if (rank_.plan.by_rows)
    scatter(at(sum), tensor);
  else
    rank_.exchange.all_reduce(at(sum), tensor);
  show(sum, tensor);
}

TensorView RankExecutor::own(const TensorView& tensor) const {
  if (!rank_.plan.by_rows) return tensor;
  const Part rows = rank_.plan.rows_of(std::ssize(batch_.info.rows));
  return tensor.slice(rows.first, rows.count);
}

// Every part has room for as many rows as the largest: what a collective makes of the rows after
// the last one is left there.
void RankExecutor::scatter(const OpContext& context, const TensorView& tensor) {
  const int64_t tokens = std::ssize(batch_.info.rows), ranks = rank_.plan.ranks;
  const int64_t each = rank_.plan.row_room(tokens), size = tensor.row_size();
  const TensorView parts = room(parts_, {ranks * each, size}, tensor.dtype, tensor.device);
  const TensorView part = room(padded_, {each, size}, tensor.dtype, tensor.device);
  const TensorView mine = own(tensor);
  copy(parts.slice(0, tokens), tensor.slice(0, tokens).reshaped({tokens, size}));
  rank_.exchange.reduce_scatter(context, parts, part);
  if (mine.rows() > 0) copy(mine.reshaped({mine.rows(), size}), part.slice(0, mine.rows()));
}

// Products read all rows: the ranks gather what each has normed.
void RankExecutor::norm_of_stream(PointName name, const TensorView& weight) {
  const TensorView mine = own(a_.norm);
  if (mine.rows() > 0) ops_.rms_norm(at(name), mine, own(stream_), weight, eps_);
  if (rank_.plan.by_rows) {
    const int64_t tokens = std::ssize(batch_.info.rows), size = a_.norm.row_size();
    const int64_t ranks = rank_.plan.ranks, each = rank_.plan.row_room(tokens);
    const TensorView part = room(padded_, {each, size}, mine.dtype, mine.device);
    const TensorView parts = room(parts_, {ranks * each, size}, mine.dtype, mine.device);
    if (mine.rows() > 0) copy(part.slice(0, mine.rows()), mine);
    rank_.exchange.all_gather(at(name), parts, part);
    copy(a_.norm.slice(0, tokens), parts.slice(0, tokens));
  }
  show(name, a_.norm);
}

void RankExecutor::norm(int layer, const TensorView& weight) {
  layer_ = layer;
  stream_ = a_.next_half();
  norm_of_stream("attn.norm", weight);
}

void RankExecutor::add_norm(PointName residual, PointName norm, int norm_layer,
                            const TensorView& weight) {
  const TensorView mine = own(a_.stream);
  if (mine.rows() > 0) ops_.add(at(residual), mine, own(stream_), own(a_.branch));
  show(residual, a_.stream);
  layer_ = norm_layer;
  stream_ = a_.next_half();
  norm_of_stream(norm, weight);
}

// Tokens of other ranks' rows are looked up as the first of this one's, and zeros are taken.
void RankExecutor::embed(const TensorView& table) {
  const int64_t tokens = a_.stream.rows();
  const RankLookup& lookup = rank_.lookups.at(lookup_room(tokens));
  const TensorView rows = lookup.rows.view().slice(0, tokens);
  const TensorView taken = lookup.taken.view().slice(0, tokens);
  ops_.gather_rows(at("embed"), lookup.found.view().slice(0, tokens), rows, table);
  ops_.gather_rows(at("embed.partial"), a_.stream, taken, lookup.found);
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
  if (const TensorView mine = own(a.branch); mine.rows() > 0)
    ops_.weighted_sum(at("mlp.combine"), mine, own(a.expert_down), own(a.weights));
                                                                      show("mlp.combine", a.branch);
}
// clang-format on

// Every rank has all logits, and chooses by itself.
Forward RankExecutor::head(const WeightView& lm_head) {
  Activations& a = a_;
  if (a.last.rows() == 0) return {a.logits, a.token};
  const int64_t rows = a.last.rows(), vocab = rank_.plan.vocab.count;
  const TensorView own = room(logits_, {rows, vocab}, a.logits.dtype, a.logits.device);
  ops_.gather_rows(at("logits"), a.last, batch_.logit_rows, a.norm);
  ops_.matmul(at("logits"), own, a.last, lm_head, {});
  gather_logits(own);
  probe_.logits(point("logits"), a.logits);
  ops_.argmax(at("token"), a.token, a.logits);
  probe_.logits(point("token"), a.token);
  return {a.logits, a.token};
}

// Parts of one size are gathered: the last rank's may have fewer columns than there is room for.
void RankExecutor::gather_logits(const TensorView& own) {
  const TensorView logits = a_.logits;
  const int64_t rows = own.rows(), count = own.shape.last(), whole = rank_.plan.whole.vocab;
  const int64_t ranks = rank_.plan.ranks, each = rank_.plan.vocab_room;
  const auto device_room = [&](Tensor& buffer, const Shape& shape) {
    return room(buffer, shape, logits.dtype, logits.device);
  };
  TensorView padded = own;
  if (count != each) {
    padded = device_room(padded_, {rows, each});
    for (int64_t row = 0; row < rows; ++row)
      copy(stretch(padded, row * each, count), stretch(own, row * count, count));
  }
  const TensorView parts = device_room(parts_, {ranks, rows, each});
  rank_.exchange.all_gather(at("logits"), parts, padded);
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t first = rank * each, held = std::min(each, whole - first);
      copy(stretch(logits, row * whole + first, held),
           stretch(parts, (rank * rows + row) * each, held));
    }
}

}  // namespace lockstep
