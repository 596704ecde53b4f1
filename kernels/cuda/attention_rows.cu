// The attention that takes any input: fp32, any head_dim, memory of any alignment. A warp has one
// row of one query head. Of a block of 32 keys its lanes take a key each for the scores, and then
// some elements of head_dim each for the sums; the softmax is online over blocks, in the order that
// attention.cuh lays down.
#include "kernels/cuda/attention.cuh"

namespace lockstep {
namespace {

constexpr int kRows = 4;                               // of a block, a warp each
constexpr int kElementsPerLane = kWidestHead / kWarp;  // elements of a head that a lane sums

// A row's softmax, and the sums of the elements lane, lane + 32, .. that a lane holds.
struct Row {
  Softmax softmax;
  float acc[kElementsPerLane] = {};
};

// The product q . k of this lane's key.
template <typename T, int kVector>
__device__ float score_of(const float* q, const T* k, int head_dim) {
  struct alignas(sizeof(T) * kVector) Some {
    T e[kVector];
  };
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < head_dim; i += kVector) {
    const Some some = *reinterpret_cast<const Some*>(k + i);
#pragma unroll
    for (int c = 0; c < kVector; ++c) sum = fmaf(q[i + c], widen(some.e[c]), sum);
  }
  return sum;
}

// Updates the row with a block of keys: positions [begin, end), which are visible and not empty.
template <typename T, int kVector>
__device__ void process_block(const AttentionArguments<T>& a, const Queries& queries, int kv_head,
                              const float* q, KeyRange keys, Row& row) {
  const int lane = threadIdx.x % kWarp, count = keys.end - keys.begin;
  int64_t offset = -1;
  float score = kNegInf;
  if (lane < count) {
    offset = key_offset(a, queries, kv_head, keys.begin + lane);
    score = offset < 0 ? NAN : score_of<T, kVector>(q, a.k + offset, a.head_dim) * a.scale;
  }
  float row_max = fmaxf(row.softmax.row_max, score);
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, offset));
  const float base = finite_max(row_max), correction = expf(row.softmax.row_max - base);
  const float p = lane < count ? expf(score - base) : 0.0f;
  row.softmax = {row_max, fmaf(row.softmax.row_sum, correction, warp_sum(p))};
#pragma unroll
  for (int i = 0; i < kElementsPerLane; ++i) row.acc[i] *= correction;
  for (int j = 0; j < count; ++j) {
    const float prob = __shfl_sync(~0u, p, j);
    const int64_t from = __shfl_sync(~0u, offset, j);
    if (from < 0) continue;  // its probability is NaN already
#pragma unroll
    for (int i = 0; i < kElementsPerLane; ++i)
      if (lane + i * kWarp < a.head_dim)
        row.acc[i] = fmaf(prob, widen(a.v[from + lane + i * kWarp]), row.acc[i]);
  }
}

// The grid is (rows / 4, splits or 1): a warp a row of one token and one head, its lanes first a
// key each (scores) and then some elements of head_dim each (output).
template <typename T, int kVector>
__global__ void __launch_bounds__(kRows* kWarp) attend_rows(AttentionArguments<T> a) {
  pdl_launch_dependents_and_wait();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (blockIdx.x == 0 && blockIdx.y == 0 && warp == 0) check_batch(a);
  const int64_t at = int64_t{blockIdx.x} * kRows + warp, token = at / a.heads;
  if (token >= a.tokens) return;
  const int head = at % a.heads, kv_head = head / a.group;
  int q_tile = token;
  const Queries queries = locate_q_tile(a, 1, 1, q_tile);
  if (queries.request < 0) return;
  __shared__ float all_q[kRows][kWidestHead];
  float* q = all_q[warp];
  for (int i = lane; i < a.head_dim; i += kWarp) q[i] = widen(a.q[at * a.head_dim + i]);
  __syncwarp();
  const int position = queries.position(token);
  const KeyRange all = visible_keys(a, position),
                 visible = a.partials == nullptr ? all : within_splits(a, queries, all);
  const int only = a.partials == nullptr ? -1 : static_cast<int>(blockIdx.y);  // -1: all splits
  Row row;
  for (int split = only < 0 ? visible.begin / kSplitKeys : only;
       split * kSplitKeys < visible.end && (only < 0 || split == only); ++split) {
    Row partial;
    const int end = min(visible.end, (split + 1) * kSplitKeys);
    for (int b = max(split * kSplitKeys, visible.begin / kBlockKeys * kBlockKeys); b < end;
         b += kBlockKeys)
      process_block<T, kVector>(a, queries, kv_head, q,
                                {max(b, visible.begin), min(b + kBlockKeys, end)}, partial);
    if (only < 0) {
      const MergeScales merged = merge(row.softmax, partial.softmax);
      for (int i = 0; i < kElementsPerLane; ++i) row.acc[i] = merged(row.acc[i], partial.acc[i]);
    } else if (end > max(split * kSplitKeys, visible.begin)) {
      float* to = a.partial(token, head, split);
      if (lane == 0)
        to[a.head_dim] = partial.softmax.row_max, to[a.head_dim + 1] = partial.softmax.row_sum;
#pragma unroll
      for (int i = 0; i < kElementsPerLane; ++i)
        if (lane + i * kWarp < a.head_dim) to[lane + i * kWarp] = partial.acc[i];
    }
  }
  if (only >= 0) return;
  const float inv_sum = inv_row_sum(row.softmax, position);
#pragma unroll
  for (int i = 0; i < kElementsPerLane; ++i)
    if (lane + i * kWarp < a.head_dim)
      a.out[at * a.head_dim + lane + i * kWarp] = narrow<T>(scaled(row.acc[i], inv_sum));
}

}  // namespace

template <typename T>
void attend_by_rows(const OpContext& context, const AttentionArguments<T>& a) {
  const dim3 blocks((a.tokens * a.heads + kRows - 1) / kRows,
                    a.partials == nullptr ? 1 : static_cast<unsigned>(a.kv_splits));
  const bool wide = aligned_16(a.head_dim * int64_t{sizeof(T)}, a.k);
  const auto kernel = wide ? attend_rows<T, Vector<T>::kSize> : attend_rows<T, 1>;
  launch_pdl("paged_attention", context.stream, blocks, kRows * kWarp, kernel, a);
}

template void attend_by_rows(const OpContext&, const AttentionArguments<float>&);
template void attend_by_rows(const OpContext&, const AttentionArguments<__half>&);
template void attend_by_rows(const OpContext&, const AttentionArguments<__nv_bfloat16>&);

}  // namespace lockstep
