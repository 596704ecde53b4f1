// Which part of a model a rank holds, after Megatron: q, k, v, gate and up by output rows, o and
// down by input columns, the embedding and the head by rows of the vocabulary, experts by their
// intermediate; norms, the router and the residual stream are in every rank.
#pragma once

#include <optional>

#include "probes/record.h"
#include "src/weights/config.h"

namespace lockstep {

// A stretch of an axis of a whole tensor.
struct Part {
  int64_t first = 0, count = 0;
};

// The sizes of one rank's model.
struct RankPlan {
  int rank = 0, ranks = 1;
  ModelConfig whole;
  // The sizes of the rank's own model: as `whole`, but for heads, intermediates, and a bias of o,
  // which rank 0 alone adds. Its vocabulary is the whole one, which its logits have once gathered.
  ModelConfig local;
  Part heads, kv_heads, inner, expert_inner;
  Part vocab;              // the last rank may have fewer rows than the others
  int64_t vocab_room = 0;  // rows of the largest part
  int64_t mask_first = 0;  // the first token that its lookup answers for: vocab.first
  // Sequence parallel: the residual stream and the norms of it are shared by rows of the pass, a
  // stretch a rank, and the norms are gathered before products read them.
  bool by_rows = false;

  // The part of the whole tensor of a point that the rank's is; none: it has the whole. A partial
  // sum is the rank's own row of an axis of ranks, after that of tokens.
  std::optional<Shard> shard_of(const Point& point) const;
  // The rank's rows of a pass of so many tokens, where the stream is shared by rows: of `room` rows
  // each, but for the last ranks, which may have fewer, or none.
  Part rows_of(int64_t tokens) const;
  int64_t row_room(int64_t tokens) const { return (tokens + ranks - 1) / ranks; }
};

// Throws Error when the model's heads or intermediates are no multiple of `ranks`, or when the
// query heads of a rank would read K/V heads in another order than the model's.
RankPlan plan_of(const ModelConfig& whole, int rank, int ranks);

// Whether the point shows what each rank adds to a sum over the ranks, and whether it is such a
// sum.
bool is_partial(const Point& point);
// Whether ranks that share the stream by rows have a part of the point's each; of the norms, which
// they gather, each computed a part.
bool is_of_stream(const Point& point);
bool is_gathered(const Point& point);
bool is_sum(const Point& point);

}  // namespace lockstep
