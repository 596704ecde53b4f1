// What the CUDA kernels of paged_attention share.
//
// Keys are taken in chunks [0, 128), [128, 256), .. of positions and, within a chunk, in blocks of
// 32, each relative to a running maximum; the chunks are then merged in their order. Where there
// are few queries a chunk is taken by a block of threads; if they have few chunks too, the blocks
// of a row are a cluster, which merges them on the spot, else another kernel does. Where there are
// many queries one warp, or a warpgroup, takes all chunks of its rows. The arithmetic is the same,
// and so is every bit. Source: Dao 2023 (FlashAttention-2), Dao et al. 2023 (Flash-Decoding), and
// for warpgroups Shah et al. 2024 (FlashAttention-3).
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
  float* partials;  // [tokens, heads, chunks, partial_size()]; null: no chunks apart
  int kv_splits;    // that the page table has room for

  // What a chunk gives a row: as many numbers as head_dim, each the sum of e^(score - largest) v,
  // then the largest score and the sum of e^(score - largest). Whole sectors of the memory, where
  // head_dim is a multiple of theirs.
  __host__ __device__ int64_t partial_size() const { return head_dim + 8; }
  __device__ float* partial(int64_t token, int head, int64_t split) const {
    return partials + ((token * heads + head) * kv_splits + split) * partial_size();
  }
};

// The queries of one request. In 32 bits, as query_start, because arithmetic of 64 takes long.
struct Queries {
  int request = -1;  // -1: there is none
  int first = 0, end = 0;
  int length = 0;  // of its context
  __device__ int position(int token) const { return length - (end - token); }
  // Of these queries and a group of heads.
  template <typename T>
  __device__ int rows(const AttentionArguments<T>& a) const {
    return (end - first) * a.group;
  }
};

// Positions [begin, end) of keys. In 32 bits, as the lengths of contexts, to
// save registers.
struct KeyRange {
  int begin, end;
};

template <typename T>
__device__ KeyRange visible_keys(const AttentionArguments<T>& a, int position) {
  const int begin = a.window > 0 ? max(position - a.window + 1, 0) : 0;
  return {begin, max(position + 1, begin)};
}

// Never outside the pass, whatever query_start says; that it says nothing else is looked at once.
template <typename T>
__device__ Queries queries_of(const AttentionArguments<T>& a, int request) {
  const int tokens = static_cast<int>(a.tokens), length = a.context_length[request];
  const int first = min(max(a.query_start[request], 0), tokens);
  const int end = min(max(a.query_start[request + 1], first), tokens);
  return {request, first, end, max(length, 0)};
}

// Of all requests' runs of `per` rows of queries and heads of a group, by one warp: the queries
// whose run is the one with that number, which becomes its number within them.
template <typename T>
__device__ Queries locate_q_tile(const AttentionArguments<T>& a, int group, int per, int& q_tile) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), requests = static_cast<int>(a.requests);
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

// Reports what of the batch is not as it should be, by one warp.
template <typename T>
__device__ void check_batch(const AttentionArguments<T>& a) {
  using Of = BadIndex::Of;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int32_t* start = a.query_start;
  if (lane == 0 && (start[0] != 0 || start[a.requests] != a.tokens))
    report(a.bad, Of::query_start, a.tokens, start[0], start[a.requests]);
  for (int64_t r = lane; r < a.requests; r += kWarp) {
    if (start[r] > start[r + 1]) report(a.bad, Of::query_order, start[r], start[r + 1], r);
    if (a.context_length[r] < 0) report(a.bad, Of::context_length, 0, a.context_length[r], r);
  }
}

// The element of the cache where the key at a position begins; -1, and a
// report, where the page table names no page of the pool.
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

// What of the keys is in chunks that there is room for: a page table that is too short is reported.
template <typename T>
__device__ KeyRange within_splits(const AttentionArguments<T>& a, const Queries& queries,
                                  KeyRange visible) {
  if (visible.end <= a.kv_splits * kSplitKeys) return visible;
  if (threadIdx.x % kWarp == 0)
    report(a.bad, BadIndex::Of::attended_table, (queries.length + a.page_size - 1) / a.page_size,
           a.table_pages, a.page_size);
  return {visible.begin, a.kv_splits * kSplitKeys};
}

// A largest score from which exponents can be taken: as long as every score is
// -Inf there is none.
__device__ inline float finite_max(float row_max) { return row_max == kNegInf ? 0.0f : row_max; }

// What is known of the softmax of a row: the largest score and the sum relative
// to it.
struct Softmax {
  float row_max = kNegInf, row_sum = 0;
};

// How two weighted sums are scaled when they are merged. Every product and sum
// is spelt out, because compilers may fuse them otherwise in one kernel and not
// in another.
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

// The same of many chunks, a lane each, of which `most` is the largest score before and then after
// them: at once, because exponentials would wait for each other. Lanes from `count` on have none.
__device__ inline MergeScales merge_lanes(float& row_max, float lane_max, int count) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
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

// What at most kMost chunks from `first` on give a row, in their order, by a warp with a column for
// each lane, whose sum it returns: partial_of(chunk) is where a chunk's is. NaN of one that there
// is no room for, which was reported.
template <int kBatch, typename PartialOf>
__device__ float merge_splits(Softmax& to, float sum, int first, int count, int kv_splits,
                              int head_dim, int column, PartialOf partial_of) {
  static_assert(kBatch <= kWarp);
  const auto partial = [&](int i) { return partial_of(min(first + i, kv_splits - 1)); };
  const int lane = static_cast<int>(threadIdx.x % kWarp);
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

// What a row's sums are multiplied with at the end. Scores that are all -Inf
// have no softmax; a query that sees no key has an empty sum.
__device__ inline float inv_row_sum(const Softmax& softmax, int position) {
  if (position < 0) return 0;
  return softmax.row_sum == 0 ? NAN : 1.0f / softmax.row_sum;
}

// A sum times that unit; never -0, which depends on how many empty chunks a row
// was merged with.
__device__ inline float scaled(float sum, float inv_sum) { return __fmaf_rn(sum, inv_sum, 0.0f); }

// The kernels, for arguments that were checked.
// Of 16-bit dtypes whose head_dim and addresses suit the tensor cores (false,
// with nothing done, where they do not): all chunks of a row by one warp,
template <typename T>
bool attend_on_tensor_cores(const OpContext& context, const AttentionArguments<T>& a);
// the same for four tiles by a warpgroup, on devices of capability 9.0 alone
// and of head_dim 64 or 128,
template <typename T>
bool attend_by_warpgroups(const OpContext& context, const AttentionArguments<T>& a);
// or every chunk by a block, into `parts`; without `parts` there may be one
// chunk only.
template <typename T>
bool attend_splits_on_tensor_cores(const OpContext& context, const AttentionArguments<T>& a);
// The same where the chunks are so few that all are worked on at once, and merged on the spot:
// `parts` are not wanted.
template <typename T>
bool attend_in_clusters(const OpContext& context, const AttentionArguments<T>& a);
// Of any dtype and any head_dim up to kWidestHead, a warp a row; chunks apart
// where there are `parts`.
constexpr int kWidestHead = 256;
template <typename T>
void attend_by_rows(const OpContext& context, const AttentionArguments<T>& a);

}  // namespace lockstep
