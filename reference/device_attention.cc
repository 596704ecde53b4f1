// Block by block of queries: four products of matrices by LibTorch, of q k and |q| |k| by K, of the
// weights by |V| and V, and of their squares by V and V^2, and two kernels (attention_kernels.h)
// between and behind them. So a score is written three times and read some ten, where an op of
// LibTorch a step took five times as many, and sum p |v - o|, which is no product, needs no tensor
// of all keys by all dims.
#include "reference/device_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "reference/attention_kernels.h"
#include "reference/own_stream.h"

namespace lockstep {
namespace {

// Elements of a tensor of scores, of which there are two at once: 256 MiB. And queries of a block
// at most, each of which is computed with all keys that the last one sees.
constexpr int64_t kScoresAtOnce = 1 << 25, kMostRows = 256;

// The queries from `first` on whose scores there is room for, and the keys that any of them sees.
struct QueryBlock {
  int64_t first, count;
  KeyRange keys;

  QueryBlock(const std::vector<KeyRange>& seen, int64_t first_, int64_t heads) : first(first_) {
    count = std::min(kMostRows, std::ssize(seen) - first);
    find_keys(seen);
    // Keys grow along a prompt: those of the last query that may join bound the block's size.
    count = std::clamp<int64_t>(kScoresAtOnce / (heads * (keys.end - keys.begin)), 1, count);
    find_keys(seen);
  }

 private:
  void find_keys(const std::vector<KeyRange>& seen) {
    keys = seen[static_cast<size_t>(first)];
    for (int64_t i = first; i < first + count; ++i) {
      const KeyRange& of = seen[static_cast<size_t>(i)];
      keys = {std::min(keys.begin, of.begin), std::max(keys.end, of.end)};
    }
  }
};

// [queries, 2]
at::Tensor ranges_on(const at::Device& device, const std::vector<KeyRange>& seen) {
  std::vector<int64_t> ends;
  for (const KeyRange& range : seen) ends.push_back(range.begin), ends.push_back(range.end);
  return at::tensor(ends).to(device);
}

// Tensors that all blocks read.
struct Operands {
  at::Tensor k, k_size;  // [kv heads, keys, dim]
  at::Tensor v;          // [kv heads, keys, |v| v v^2 of dim each]
  at::Tensor seen;
};

// Tensors that each block writes over.
struct Room {
  at::Tensor scores, sizes;

  static at::Tensor some(const at::Tensor& x, int64_t heads, int64_t rows, int64_t keys) {
    return x.narrow(0, 0, heads * rows * keys).view({heads, rows, keys});
  }
};

double* at_query(const at::Tensor& sums, int64_t query) {
  return sums.mutable_data_ptr<double>() + query * sums.stride(0);
}

void attend_block(const at::Tensor& q, const Operands& all, const QueryBlock& block, double scale,
                  const Room& room, const WeightedSums& sums) {
  const int64_t kv = q.size(1), group = q.size(2), dim = q.size(3), rows = group * block.count;
  const int64_t keys = block.keys.end - block.keys.begin;
  const auto part = [&](const at::Tensor& x) { return x.narrow(1, block.keys.begin, keys); };
  const at::Tensor queries =
      q.narrow(0, block.first, block.count).permute({1, 2, 0, 3}).reshape({kv, rows, dim});
  at::Tensor scores = Room::some(room.scores, kv, rows, keys);
  at::Tensor sizes = Room::some(room.sizes, kv, rows, keys);
  at::bmm_out(scores, queries, part(all.k).transpose(1, 2));
  at::bmm_out(sizes, queries.abs(), part(all.k_size).transpose(1, 2));
  const at::Tensor squares = at::empty({kv * rows}, q.options());
  const auto* const seen = all.seen.const_data_ptr<int64_t>() + 2 * block.first;
  const KernelQueue queue = queue_of_this_thread(q.device());
  softmax_rows(queue, {.heads = kv * group,
                       .queries = block.count,
                       .keys = keys,
                       .scale = scale,
                       .seen = seen,
                       .first_key = block.keys.begin,
                       .scores = scores.mutable_data_ptr<double>(),
                       .sizes = sizes.mutable_data_ptr<double>(),
                       .score = at_query(sums.score, block.first),
                       .squares = squares.mutable_data_ptr<double>()});
  const at::Tensor values = part(all.v), v = values.narrow(2, dim, dim);
  const at::Tensor weighted = at::bmm(scores, values.narrow(2, 0, 2 * dim));
  const at::Tensor of_squares = at::bmm(sizes, values.narrow(2, dim, 2 * dim));
  spread_rows(queue, {.kv_heads = kv,
                      .group = group,
                      .queries = block.count,
                      .keys = keys,
                      .dim = dim,
                      .seen = seen,
                      .first_key = block.keys.begin,
                      .p = scores.const_data_ptr<double>(),
                      .v = v.const_data_ptr<double>(),
                      .v_head = v.stride(0),
                      .v_key = v.stride(1),
                      .weighted = weighted.const_data_ptr<double>(),
                      .of_squares = of_squares.const_data_ptr<double>(),
                      .squares = squares.const_data_ptr<double>(),
                      .out = at_query(sums.out, block.first),
                      .magnitude = at_query(sums.magnitude, block.first),
                      .spread = at_query(sums.spread, block.first),
                      .spread_squares = at_query(sums.spread_squares, block.first),
                      .weighted_squares = at_query(sums.weighted_squares, block.first)});
}

}  // namespace

bool has_kernels_for(const at::Tensor& q, const AttentionCall& call) {
  using enum RoundingContract;
  const bool plain = call.contract == fused || call.contract == cache_fp16;
  return plain && call.for_budget && q.is_cuda() && has_attention_kernels();
}

void attend_in_kernels(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const std::vector<KeyRange>& seen, double scale, const WeightedSums& sums) {
  const int64_t heads = q.size(1) * q.size(2);
  const at::Tensor k_whole = k.contiguous();
  const Operands all{.k = k_whole,
                     .k_size = k_whole.abs(),
                     .v = at::cat({v.abs(), v, v.square()}, -1),
                     .seen = ranges_on(q.device(), seen)};
  std::vector<QueryBlock> blocks;
  int64_t most = 0;
  for (int64_t first = 0; first < std::ssize(seen); first += blocks.back().count) {
    const QueryBlock& block = blocks.emplace_back(seen, first, heads);
    most = std::max(most, heads * block.count * (block.keys.end - block.keys.begin));
  }
  const Room room{at::empty({most}, q.options()), at::empty({most}, q.options())};
  for (const QueryBlock& block : blocks) attend_block(q, all, block, scale, room, sums);
}

}  // namespace lockstep
