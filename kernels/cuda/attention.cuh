// What the CUDA kernels of paged_attention share.
//
// Keys are taken in chunks [0, 128), [128, 256), .. of positions and, within a chunk, in blocks of
// 32, each relative to a running maximum; the chunks are then joined in their order. Where there
// are few queries a chunk is taken by a block of threads; if they have few chunks too, the blocks
// of a row are a cluster, which joins them on the spot, else another kernel does. Where there are
// many queries one warp, or a warpgroup, takes all chunks of its rows. The arithmetic is the same,
// and so is every bit. Source: Dao 2023 (FlashAttention-2), Dao et al. 2023 (Flash-Decoding), and
// for warpgroups Shah et al. 2024 (FlashAttention-3).
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/paged_attention.h"

namespace lockstep {

constexpr int kChunkKeys = 128;
constexpr int kBlockKeys = kWarp;  // a lane a key, where they are looked up
constexpr float kNothing = -INFINITY;

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
  float* parts;  // [tokens, heads, chunks, part_size()]; null: no chunks apart
  int chunks;    // that the page table has room for

  // What a chunk gives a row: as many numbers as head_dim, each the sum of e^(score - largest) v,
  // then the largest score and the sum of e^(score - largest). Whole sectors of the memory, where
  // head_dim is a multiple of theirs.
  __host__ __device__ int64_t part_size() const { return head_dim + 8; }
  __device__ float* part(int64_t token, int head, int64_t chunk) const {
    return parts + ((token * heads + head) * chunks + chunk) * part_size();
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
__device__ KeyRange seen_from(const AttentionArguments<T>& a, int position) {
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
__device__ Queries find_run(const AttentionArguments<T>& a, int group, int per, int& run) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), requests = static_cast<int>(a.requests);
  for (int base = 0; base < requests; base += kWarp) {
    Queries mine;
    if (base + lane < requests) mine = queries_of(a, base + lane);
    const int runs = ((mine.end - mine.first) * group + per - 1) / per;
    int sum = runs;                                      // up to and with this lane's
    if (__all_sync(~0u, mine.request < 0 || runs == 1))  // as where every request decodes
      sum = min(lane + 1, requests - base);
    else
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int other = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += other;
      }
    const unsigned after = __ballot_sync(~0u, run < sum);
    if (after == 0) {
      run -= __shfl_sync(~0u, sum, kWarp - 1);
      continue;
    }
    const int found = __ffs(static_cast<int>(after)) - 1;
    run -= __shfl_sync(~0u, sum - runs, found);
    return {base + found, __shfl_sync(~0u, mine.first, found), __shfl_sync(~0u, mine.end, found),
            __shfl_sync(~0u, mine.length, found)};
  }
  return {};
}

// Reports what of the batch is not as it should be, by one warp.
template <typename T>
__device__ void look_at_batch(const AttentionArguments<T>& a) {
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
__device__ int64_t place_of(const AttentionArguments<T>& a, const Queries& queries, int kv_head,
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
__device__ KeyRange in_chunks(const AttentionArguments<T>& a, const Queries& queries,
                              KeyRange seen) {
  if (seen.end <= a.chunks * kChunkKeys) return seen;
  if (threadIdx.x % kWarp == 0)
    report(a.bad, BadIndex::Of::attended_table, (queries.length + a.page_size - 1) / a.page_size,
           a.table_pages, a.page_size);
  return {seen.begin, a.chunks * kChunkKeys};
}

// A largest score from which exponents can be taken: as long as every score is
// -Inf there is none.
__device__ inline float base_of(float most) { return most == kNothing ? 0.0f : most; }

// What is known of the softmax of a row: the largest score and the sum relative
// to it.
struct Softmax {
  float most = kNothing, total = 0;
};

// How two weighted sums are scaled when they are joined. Every product and sum
// is spelt out, because compilers may fuse them otherwise in one kernel and not
// in another.
struct Join {
  float old_scale, new_scale;
  __device__ float operator()(float old_sum, float new_sum) const {
    return __fmaf_rn(new_sum, new_scale, __fmul_rn(old_sum, old_scale));
  }
};

__device__ inline Join join(Softmax& to, const Softmax& chunk) {
  const float most = fmaxf(to.most, chunk.most), base = base_of(most);
  const Join join = {expf(to.most - base), expf(chunk.most - base)};
  to = {most, join(to.total, chunk.total)};
  return join;
}

// The same of many chunks, a lane each, of which `most` is the largest score before and then after
// them: at once, because exponentials would wait for each other. Lanes from `count` on have none.
__device__ inline Join join_lanes(float& most, float of_chunk, int count) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float all = lane < count ? of_chunk : kNothing;  // up to and with this lane's
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float other = __shfl_up_sync(~0u, all, offset);
    if (lane >= offset) all = fmaxf(all, other);
  }
  all = fmaxf(all, most);
  const float before = __shfl_up_sync(~0u, all, 1), base = base_of(all);
  const Join join = {expf((lane == 0 ? most : before) - base), expf(of_chunk - base)};
  most = __shfl_sync(~0u, all, count - 1);
  return join;
}

// What at most kMost chunks from `first` on give a row, in their order, by a warp with a column for
// each lane, whose sum it returns: part_of(chunk) is where a chunk's is. NaN of one that there is
// no room for, which was reported.
template <int kMost, typename PartOf>
__device__ float join_chunks(Softmax& to, float sum, int first, int count, int chunks, int head_dim,
                             int column, PartOf part_of) {
  static_assert(kMost <= kWarp);
  const auto part = [&](int i) { return part_of(min(first + i, chunks - 1)); };
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float sums[kMost];  // all of which are read before the first is used
#pragma unroll
  for (int i = 0; i < kMost; ++i)
    if (i < count) sums[i] = part(i)[column];
  const float* const mine = part(min(lane, count - 1)) + head_dim;
  const bool there = first + lane < chunks || lane >= count;
  const float total = there ? mine[1] : NAN;
  const Join joins = join_lanes(to.most, there ? mine[0] : NAN, count);
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i >= count) break;
    const Join join = {__shfl_sync(~0u, joins.old_scale, i), __shfl_sync(~0u, joins.new_scale, i)};
    to.total = join(to.total, __shfl_sync(~0u, total, i));
    sum = join(sum, sums[i]);
  }
  return sum;
}

// What a row's sums are multiplied with at the end. Scores that are all -Inf
// have no softmax; a query that sees no key has an empty sum.
__device__ inline float unit_of(const Softmax& softmax, int position) {
  if (position < 0) return 0;
  return softmax.total == 0 ? NAN : 1.0f / softmax.total;
}

// A sum times that unit; never -0, which depends on how many empty chunks a row
// was joined with.
__device__ inline float scaled(float sum, float unit) { return __fmaf_rn(sum, unit, 0.0f); }

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
bool attend_chunks_on_tensor_cores(const OpContext& context, const AttentionArguments<T>& a);
// The same where the chunks are so few that all are worked on at once, and joined on the spot:
// `parts` are not wanted.
template <typename T>
bool attend_in_clusters(const OpContext& context, const AttentionArguments<T>& a);
// Of any dtype and any head_dim up to kWidestHead, a warp a row; chunks apart
// where there are `parts`.
constexpr int kWidestHead = 256;
template <typename T>
void attend_by_rows(const OpContext& context, const AttentionArguments<T>& a);

}  // namespace lockstep
