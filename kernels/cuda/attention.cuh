// The CUDA kernels of paged_attention: the arguments, masks and softmax that all of them share.
//
// The keys of a row are cut into splits of 128 positions, [0, 128), [128, 256), .., and each split
// into blocks of 32. Within a split the softmax is online: every block is relative to the running
// row_max. The splits are then merged in their order. All kernels do this arithmetic in this order,
// so that every bit is the same whichever of them runs:
//
//   few queries a request (decode)               many queries a request (prefill)
//     attend_in_clusters     16 splits at most     attend_by_warpgroups    capability 9.0
//     attend_splits_on_..    partials, and then    attend_on_tensor_cores  a warp a q tile
//       combine_splits       the kernel that merges them
//   attend_by_rows: fp32, other head_dims, unaligned memory; a warp a row, with or without partials
//
// Source: Dao 2023 (FlashAttention-2), Dao et al. 2023 (Flash-Decoding), and for warpgroups Shah et
// al. 2024 (FlashAttention-3).
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/paged_attention.h"

namespace lockstep {

constexpr int kSplitKeys = 128;
constexpr int kBlockKeys = kWarp;  // a lane a key, where they are looked up
constexpr float kNegInf = -INFINITY;

template <typename T>
struct AttentionArguments {
  T* out;
  const T* q;
  const T* k;
  const T* v;
  const int32_t* query_start;
  const int32_t* context_length;
  const int32_t* page_table;
  int64_t tokens, requests, pages, page_size, table_pages;
  int page_shift;  // page_size is 1 << page_shift; -1: no power of two
  int heads, kv_heads, head_dim;
  int group;  // heads of a K/V head
  float scale;
  int window;
  BadIndex* bad;
  float* partials;  // [tokens, heads, kv_splits, partial_size()]; null: one block takes all splits
  int kv_splits;    // that the page table has room for

  // The partial result of a row over one split: head_dim sums of e^(score - row_max) v, then
  // row_max and row_sum. It fills whole sectors of the memory where head_dim is a multiple of
  // theirs.
  __host__ __device__ int64_t partial_size() const { return head_dim + 8; }
  __device__ float* partial(int64_t token, int head, int64_t split) const {
    return partials + ((token * heads + head) * kv_splits + split) * partial_size();
  }
};

// The queries of one request. The numbers have 32 bits, as query_start has: 64-bit arithmetic is
// slow.
struct Queries {
  int request = -1;  // -1: there is none
  int first = 0, end = 0;
  int length = 0;  // of its context
  __device__ int position(int token) const { return length - (end - token); }
  // The rows of an attention tile: these queries times the heads of a group.
  template <typename T>
  __device__ int rows(const AttentionArguments<T>& a) const {
    return (end - first) * a.group;
  }
};

// Positions [begin, end) of keys. The numbers have 32 bits, as context lengths have, to save
// registers.
struct KeyRange {
  int begin, end;
};

template <typename T>
__device__ KeyRange visible_keys(const AttentionArguments<T>& a, int position) {
  const int begin = a.window > 0 ? max(position - a.window + 1, 0) : 0;
  return {begin, max(position + 1, begin)};
}

// The range is clamped to the pass, whatever query_start says; check_batch reports a bad one.
template <typename T>
__device__ Queries queries_of(const AttentionArguments<T>& a, int request) {
  const int tokens = a.tokens, length = a.context_length[request];
  const int first = min(max(a.query_start[request], 0), tokens);
  const int end = min(max(a.query_start[request + 1], first), tokens);
  return {request, first, end, max(length, 0)};
}

// One warp finds the request of a q tile. A q tile is `per` rows of the queries of a request times
// `group` heads, and `q_tile` is its number in the pass; it becomes its number within the request.
template <typename T>
__device__ Queries locate_q_tile(const AttentionArguments<T>& a, int group, int per, int& q_tile) {
  const int lane = threadIdx.x % kWarp, requests = a.requests;
  for (int base = 0; base < requests; base += kWarp) {
    Queries mine;
    if (base + lane < requests) mine = queries_of(a, base + lane);
    const int tiles = ((mine.end - mine.first) * group + per - 1) / per;
    int sum = tiles;                                      // up to and with this lane's
    if (__all_sync(~0u, mine.request < 0 || tiles == 1))  // as where every request decodes
      sum = min(lane + 1, requests - base);
    else
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int other = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += other;
      }
    const unsigned after = __ballot_sync(~0u, q_tile < sum);
    if (after == 0) {
      q_tile -= __shfl_sync(~0u, sum, kWarp - 1);
      continue;
    }
    const int found = __ffs(static_cast<int>(after)) - 1;
    q_tile -= __shfl_sync(~0u, sum - tiles, found);
    return {base + found, __shfl_sync(~0u, mine.first, found), __shfl_sync(~0u, mine.end, found),
            __shfl_sync(~0u, mine.length, found)};
  }
  return {};
}

// One warp reports the first inconsistency of query_start and context_length.
template <typename T>
__device__ void check_batch(const AttentionArguments<T>& a) {
  using Of = BadIndex::Of;
  const int lane = threadIdx.x % kWarp;
  const int32_t* start = a.query_start;
  if (lane == 0 && (start[0] != 0 || start[a.requests] != a.tokens))
    report(a.bad, Of::query_start, a.tokens, start[0], start[a.requests]);
  for (int64_t r = lane; r < a.requests; r += kWarp) {
    if (start[r] > start[r + 1]) report(a.bad, Of::query_order, start[r], start[r + 1], r);
    if (a.context_length[r] < 0) report(a.bad, Of::context_length, 0, a.context_length[r], r);
  }
}

// The element of the cache where the key at a position begins; -1, and a report, where the page
// table names no page of the pool.
template <typename T>
__device__ int64_t key_offset(const AttentionArguments<T>& a, const Queries& queries, int kv_head,
                              int position) {
  // Unsigned and short, because a division takes long, and one of 64 bits longer.
  const auto size = static_cast<uint32_t>(a.page_size), at = static_cast<uint32_t>(position);
  const uint32_t entry = a.page_shift >= 0 ? at >> a.page_shift : at / size;
  if (entry >= a.table_pages) {
    report(a.bad, BadIndex::Of::attended_table, (queries.length + a.page_size - 1) / a.page_size,
           a.table_pages, a.page_size);
    return -1;
  }
  const int64_t page = a.page_table[queries.request * a.table_pages + entry];
  if (page < 0 || page >= a.pages) {
    report(a.bad, BadIndex::Of::attended_page, a.pages, page, entry);
    return -1;
  }
  return ((page * a.page_size + (at - entry * size)) * a.kv_heads + kv_head) * a.head_dim;
}

// The visible keys clamped to the splits that the page table covers; a table that is too short is
// reported.
template <typename T>
__device__ KeyRange within_splits(const AttentionArguments<T>& a, const Queries& queries,
                                  KeyRange visible) {
  if (visible.end <= a.kv_splits * kSplitKeys) return visible;
  if (threadIdx.x % kWarp == 0)
    report(a.bad, BadIndex::Of::attended_table, (queries.length + a.page_size - 1) / a.page_size,
           a.table_pages, a.page_size);
  return {visible.begin, a.kv_splits * kSplitKeys};
}

// The row_max that exponents are taken relative to: 0 as long as every score is -Inf, because
// -Inf - -Inf is NaN.
__device__ inline float finite_max(float row_max) { return row_max == kNegInf ? 0.0f : row_max; }

// The state of a row's online softmax: the largest score and the sum of exponentials relative to
// it.
struct Softmax {
  float row_max = kNegInf, row_sum = 0;
};

// The scales of two weighted sums that are merged. Every product and sum is an intrinsic, because
// a compiler may contract them in one kernel and not in another.
struct MergeScales {
  float old_scale, new_scale;
  __device__ float operator()(float old_sum, float new_sum) const {
    return __fmaf_rn(new_sum, new_scale, __fmul_rn(old_sum, old_scale));
  }
};

__device__ inline MergeScales merge(Softmax& to, const Softmax& split) {
  const float row_max = fmaxf(to.row_max, split.row_max), base = finite_max(row_max);
  const MergeScales merge = {expf(to.row_max - base), expf(split.row_max - base)};
  to = {row_max, merge(to.row_sum, split.row_sum)};
  return merge;
}

// The scales of up to a warp of splits, one a lane, in one parallel step: computed one after the
// other, each exponential would wait for the one before. `row_max` is the largest score before and
// then after them; lanes from `count` on hold no split.
__device__ inline MergeScales merge_lanes(float& row_max, float lane_max, int count) {
  const int lane = threadIdx.x % kWarp;
  float all = lane < count ? lane_max : kNegInf;  // up to and with this lane's
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float other = __shfl_up_sync(~0u, all, offset);
    if (lane >= offset) all = fmaxf(all, other);
  }
  all = fmaxf(all, row_max);
  const float before = __shfl_up_sync(~0u, all, 1), base = finite_max(all);
  const MergeScales merge = {expf((lane == 0 ? row_max : before) - base), expf(lane_max - base)};
  row_max = __shfl_sync(~0u, all, count - 1);
  return merge;
}

// Merges up to kBatch splits of a row, from `first` on and in their order, by a warp whose lanes
// each hold one column; returns the lane's sum. partial_of(split) points to the partial result of a
// split. A split beyond the page table, which was reported, makes the result NaN.
template <int kBatch, typename PartialOf>
__device__ float merge_splits(Softmax& to, float sum, int first, int count, int kv_splits,
                              int head_dim, int column, PartialOf partial_of) {
  static_assert(kBatch <= kWarp);
  const auto partial = [&](int i) { return partial_of(min(first + i, kv_splits - 1)); };
  const int lane = threadIdx.x % kWarp;
  float sums[kBatch];  // all of which are read before the first is used
#pragma unroll
  for (int i = 0; i < kBatch; ++i)
    if (i < count) sums[i] = partial(i)[column];
  const float* const mine = partial(min(lane, count - 1)) + head_dim;
  const bool there = first + lane < kv_splits || lane >= count;
  const float row_sum = there ? mine[1] : NAN;
  const MergeScales merges = merge_lanes(to.row_max, there ? mine[0] : NAN, count);
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (i >= count) break;
    const MergeScales merge = {__shfl_sync(~0u, merges.old_scale, i),
                               __shfl_sync(~0u, merges.new_scale, i)};
    to.row_sum = merge(to.row_sum, __shfl_sync(~0u, row_sum, i));
    sum = merge(sum, sums[i]);
  }
  return sum;
}

// The factor of a row's sums at the end. Scores that are all -Inf have no softmax, which gives NaN;
// a query that sees no key has an empty sum, which gives 0.
__device__ inline float inv_row_sum(const Softmax& softmax, int position) {
  if (position < 0) return 0;
  return softmax.row_sum == 0 ? NAN : 1.0f / softmax.row_sum;
}

// A sum times inv_row_sum. The result is never -0, whose sign would depend on how many empty splits
// were merged.
__device__ inline float scaled(float sum, float inv_sum) { return __fmaf_rn(sum, inv_sum, 0.0f); }

// The launchers take checked arguments. Those that return bool return false, with nothing done,
// where dtype, head_dim, addresses or the device do not suit them.

// One warp takes all splits of a q tile, in 16-bit dtypes.
template <typename T>
bool attend_on_tensor_cores(const OpContext& context, const AttentionArguments<T>& a);
// One warpgroup takes four q tiles, on devices of capability 9.0 and for head_dim 64 or 128.
template <typename T>
bool attend_by_warpgroups(const OpContext& context, const AttentionArguments<T>& a);
// One block takes a split and writes `partials`; without `partials` there may be only one split.
template <typename T>
bool attend_splits_on_tensor_cores(const OpContext& context, const AttentionArguments<T>& a);
// A cluster takes all splits of a q tile, one a block, and merges them in shared memory, so that no
// `partials` are needed. All clusters must fit on the device at once.
template <typename T>
bool attend_in_clusters(const OpContext& context, const AttentionArguments<T>& a);
// One warp takes a row, in any dtype and for any head_dim up to kWidestHead; with `partials`, one
// split of it.
constexpr int kWidestHead = 256;
template <typename T>
void attend_by_rows(const OpContext& context, const AttentionArguments<T>& a);

}  // namespace lockstep
