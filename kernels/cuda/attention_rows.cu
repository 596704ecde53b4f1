#include "kernels/cuda/attention.cuh"

namespace lockstep {
namespace {

constexpr int kRows = 4;                     // of a block, a warp each
constexpr int kShare = kWidestHead / kWarp;  // elements of a head that a lane sums

// A row's softmax and a lane's share of its sums: elements lane, lane + 32, ..
struct Row {
  Softmax softmax;
  float sums[kShare] = {};
};

// q . k of the key that this lane looks at.
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

// Takes one block of keys into the row: [begin, end) of it, which are seen and not empty.
template <typename T, int kVector>
__device__ void take_block(const AttentionArguments<T>& a, const Queries& queries, int kv_head,
                           const float* q, KeyRange keys, Row& row) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), count = keys.end - keys.begin;
  int64_t place = -1;
  float score = kNothing;
  if (lane < count) {
    place = place_of(a, queries, kv_head, keys.begin + lane);
    score = place < 0 ? NAN : score_of<T, kVector>(q, a.k + place, a.head_dim) * a.scale;
  }
  float most = fmaxf(row.softmax.most, score);
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
  const float base = base_of(most), shrink = expf(row.softmax.most - base);
  const float p = lane < count ? expf(score - base) : 0.0f;
  row.softmax = {most, fmaf(row.softmax.total, shrink, warp_sum(p))};
#pragma unroll
  for (int i = 0; i < kShare; ++i) row.sums[i] *= shrink;
  for (int j = 0; j < count; ++j) {
    const float weight = __shfl_sync(~0u, p, j);
    const int64_t from = __shfl_sync(~0u, place, j);
    if (from < 0) continue;  // its weight is NaN already
#pragma unroll
    for (int i = 0; i < kShare; ++i)
      if (lane + i * kWarp < a.head_dim)
        row.sums[i] = fmaf(weight, widen(a.v[from + lane + i * kWarp]), row.sums[i]);
  }
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kRows* kWarp) attend_rows(AttentionArguments<T> a) {
  after_the_kernel_before();
  const int lane = static_cast<int>(threadIdx.x % kWarp),
            warp = static_cast<int>(threadIdx.x / kWarp);
  if (blockIdx.x == 0 && blockIdx.y == 0 && warp == 0) look_at_batch(a);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kRows + warp, token = at / a.heads;
  if (token >= a.tokens) return;
  const int head = static_cast<int>(at % a.heads), kv_head = head / a.group;
  int run = static_cast<int>(token);
  const Queries queries = find_run(a, 1, 1, run);
  if (queries.request < 0) return;
  __shared__ float all_q[kRows][kWidestHead];
  float* q = all_q[warp];
  for (int i = lane; i < a.head_dim; i += kWarp) q[i] = widen(a.q[at * a.head_dim + i]);
  __syncwarp();
  const int position = queries.position(token);
  const KeyRange all = seen_from(a, position),
                 seen = a.parts == nullptr ? all : in_chunks(a, queries, all);
  const int only = a.parts == nullptr ? -1 : static_cast<int>(blockIdx.y);  // -1: all chunks
  Row row;
  for (int chunk = only < 0 ? seen.begin / kChunkKeys : only;
       chunk * kChunkKeys < seen.end && (only < 0 || chunk == only); ++chunk) {
    Row part;
    const int end = min(seen.end, (chunk + 1) * kChunkKeys);
    for (int b = max(chunk * kChunkKeys, seen.begin / kBlockKeys * kBlockKeys); b < end;
         b += kBlockKeys)
      take_block<T, kVector>(a, queries, kv_head, q, {max(b, seen.begin), min(b + kBlockKeys, end)},
                             part);
    if (only < 0) {
      const Join joined = join(row.softmax, part.softmax);
      for (int i = 0; i < kShare; ++i) row.sums[i] = joined(row.sums[i], part.sums[i]);
    } else if (end > max(chunk * kChunkKeys, seen.begin)) {
      float* to = a.part(token, head, chunk);
      if (lane == 0) to[a.head_dim] = part.softmax.most, to[a.head_dim + 1] = part.softmax.total;
#pragma unroll
      for (int i = 0; i < kShare; ++i)
        if (lane + i * kWarp < a.head_dim) to[lane + i * kWarp] = part.sums[i];
    }
  }
  if (only >= 0) return;
  const float unit = unit_of(row.softmax, position);
#pragma unroll
  for (int i = 0; i < kShare; ++i)
    if (lane + i * kWarp < a.head_dim)
      a.out[at * a.head_dim + lane + i * kWarp] = narrow<T>(scaled(row.sums[i], unit));
}

}  // namespace

template <typename T>
void attend_by_rows(const OpContext& context, const AttentionArguments<T>& a) {
  const dim3 blocks(static_cast<unsigned>((a.tokens * a.heads + kRows - 1) / kRows),
                    a.parts == nullptr ? 1 : static_cast<unsigned>(a.chunks));
  const bool wide = aligned_16(a.head_dim * static_cast<int64_t>(sizeof(T)), a.k);
  const auto kernel = wide ? attend_rows<T, Vector<T>::kSize> : attend_rows<T, 1>;
  launch_early("paged_attention", context.stream, blocks, kRows * kWarp, kernel, a);
}

template void attend_by_rows(const OpContext&, const AttentionArguments<float>&);
template void attend_by_rows(const OpContext&, const AttentionArguments<__half>&);
template void attend_by_rows(const OpContext&, const AttentionArguments<__nv_bfloat16>&);

}  // namespace lockstep
