// paged_attention on the CPU: online softmax (Milakov and Gimelshein 2018) over blocks of 32 key
// positions, in fp32.
//
//     a task: up to 16 consecutive queries of a request, with all heads of one K/V head
//       for each block of keys       K and V of the block, widened to fp32 once for the task
//         scores                     q k, 16 sums in flight, times the scale
//         exp_scores                 p = exp(score - row_max); what was summed so far is rescaled
//         accumulate_pv              o += p v
//       out = o * (1 / row_sum)      rounded once, at the store
//
// Blocks begin at multiples of 32 positions of the request, whatever the page size, the pass or the
// other queries: so a row's bits depend on its own inputs alone. Tasks times K/V heads are what
// threads share.
#include "kernels/paged_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/base/arguments.h"
#include "kernels/base/bad_index.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd.h"

namespace lockstep {
namespace {

// Keys are taken in blocks [0, 32), [32, 64), .. of positions, whatever the page size: the order of
// summation, and so every bit, depends on the position of the query alone.
constexpr int64_t kBlock = 32;
constexpr int64_t kQueries = 16;  // of one request, which read K and V together
constexpr int64_t kFewRows = 4;   // up to here K and V are read where they lie, not widened first
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Up to kQueries consecutive queries of a request.
struct Task {
  int64_t token, queries;
  int64_t position;  // of the first
  const int32_t* pages;
};

// Keys [begin, end) that a query sees.
struct Keys {
  int64_t begin, end;
  bool operator==(const Keys&) const = default;
};

// The arguments of a call, and what follows from their shapes.
struct Problem {
  TensorView out, q;
  KvCache cache;
  float scale;
  int64_t window;

  int64_t heads() const { return q.shape[1]; }
  int64_t head_dim() const { return q.shape[2]; }
  int64_t kv_heads() const { return cache.k.shape[2]; }
  int64_t group() const { return heads() / kv_heads(); }
  // A head's elements, padded to whole vectors of the widest kind.
  int64_t stride() const {
    return (head_dim() + simd::kWidest - 1) / simd::kWidest * simd::kWidest;
  }
  Keys seen_from(int64_t position) const {
    const int64_t begin = window > 0 ? std::max<int64_t>(position - window + 1, 0) : 0;
    return {begin, std::max(position + 1, begin)};
  }
};

// The working memory of one thread: everything in fp32, a row padded with zeros to whole vectors.
struct Scratch {
  explicit Scratch(const Problem& p)
      : q(rows(p)),
        o(rows(p)),
        k(block(p)),
        v(block(p)),
        p(kQueries * p.group() * kBlock),
        row_max(kQueries * p.group()),
        row_sum(row_max.size()) {
    next.fill(0);
  }
  static size_t rows(const Problem& p) { return kQueries * p.group() * p.stride(); }
  static size_t block(const Problem& p) { return kBlock * p.stride(); }

  std::vector<float> q, o;              // [query, head of the group, stride]
  std::vector<float> k, v;              // [kBlock, stride]
  std::vector<float> p;                 // [query, head, kBlock]: scores, then probabilities
  std::vector<float> row_max, row_sum;  // [query, head]: running maximum, sum of probabilities
  std::array<int64_t, kBlock> next;     // elements of the cache where the next block's rows begin
};

// The rows of K and V of one K/V head, block by block of a task's positions.
template <typename T>
struct KvBlocks {
  const Problem& problem;
  const Task& task;
  Scratch& scratch;
  int64_t kv_head;

  template <int N>
  [[gnu::always_inline]] static void widen(float* to, const T* from, int64_t n, int64_t stride) {
    for (int64_t i = 0; i < stride; i += N)
      simd::store<N>(to + i, simd::load<N>(from + i, std::max(n - i, int64_t{0})));
  }

  // Element of the cache where the key of a position begins.
  int64_t place_of(int64_t position) const {
    // Unsigned and short, because a division of 64 bits takes as long as a row.
    const auto size = static_cast<uint32_t>(problem.cache.page_size());
    const auto at = static_cast<uint32_t>(position);
    const int64_t slot = int64_t{task.pages[at / size]} * size + at % size;
    return (slot * problem.kv_heads() + kv_head) * problem.head_dim();
  }

  // Points k and v to the rows of the keys of the block. Only keys that some query of the task sees
  // are read: other slots may hold anything. Their places in k repeat one that is seen, and their
  // places in v are never looked at.
  template <int N, typename E>
  [[gnu::always_inline]] void read(int64_t block, Keys keys, const E** k, const E** v) const {
    const int64_t d = problem.head_dim(), stride = problem.stride();
    const T* cache_k = problem.cache.k.as<const T>();
    const T* cache_v = problem.cache.v.as<const T>();
    const int64_t end = std::min(keys.end, block + kBlock);
    for (int64_t j = keys.begin; j < end; ++j) {
      const int64_t from = place_of(j), at = j - block;
      const int64_t next = j + kBlock < keys.end ? place_of(j + kBlock) : from;
      scratch.next[at] = next;
      if constexpr (std::is_same_v<E, float>) {
        float* to_k = &scratch.k[at * stride];
        float* to_v = &scratch.v[at * stride];
        widen<N>(to_k, cache_k + from, d, stride);
        widen<N>(to_v, cache_v + from, d, stride);
        k[at] = to_k;
        v[at] = to_v;
        prefetch(problem.cache.k, at);
        prefetch(problem.cache.v, at);
      } else {
        k[at] = cache_k + from;
        v[at] = cache_v + from;
      }
    }
    // score() takes whole groups of keys: places outside of the range repeat a key, and its scores
    // are overwritten.
    std::fill(k, k + (keys.begin - block), k[keys.begin - block]);
    std::fill(k + (end - block), k + kBlock, k[keys.begin - block]);
  }

  // Asks for the row that takes the place `at` in the block to come: rows of one head lie apart,
  // and pages anywhere, so that the CPU cannot see them coming.
  [[gnu::always_inline]] void prefetch(const TensorView& cache, int64_t at) const {
    constexpr int64_t kLine = 64 / sizeof(T);
    const T* row = cache.as<const T>() + scratch.next[at];
    for (int64_t i = 0; i < problem.head_dim(); i += kLine) __builtin_prefetch(row + i);
  }
};

template <typename T>
struct AttentionKernel {
  const Problem& problem;
  const Task& task;
  Scratch& scratch;
  int64_t kv_head;
  KvBlocks<T> blocks{problem, task, scratch, kv_head};

  template <int N>
  [[gnu::always_inline]] void operator()() const {
    begin<N>();
    // Both give the same bits: a widened number is the number.
    if (task.queries * problem.group() <= kFewRows && problem.head_dim() == problem.stride())
      take_blocks<N, T>();
    else
      take_blocks<N, float>();
    finish<N>();
  }

  // With K and V as they lie (E is T) or widened into the scratch (float).
  template <int N, typename E>
  [[gnu::always_inline]] void take_blocks() const {
    const int64_t group = problem.group();
    const Keys first = problem.seen_from(task.position);
    const Keys last = problem.seen_from(task.position + task.queries - 1);
    const E *k[kBlock], *v[kBlock];
    // From the first key that any query of the task sees to the last: each query takes what it sees
    // of a block.
    for (int64_t block = first.begin / kBlock * kBlock; block < last.end; block += kBlock) {
      blocks.template read<N>(block, {std::max(first.begin, block), last.end}, k, v);
      for (int64_t i = 0; i < task.queries;) {
        const Keys keys = seen_in(block, i);
        int64_t next = i + 1;  // queries that see the same keys of the block are taken together
        while (next < task.queries && seen_in(block, next) == keys) ++next;
        if (keys.begin < keys.end) attend_rows<N>(i * group, next * group, keys, k, v);
        i = next;
      }
    }
  }

  int64_t element(int64_t query, int64_t head) const {
    const int64_t at = (task.token + query) * problem.heads() + kv_head * problem.group() + head;
    return at * problem.head_dim();
  }

  template <int N>
  [[gnu::always_inline]] void begin() const {
    const int64_t d = problem.head_dim(), group = problem.group(), stride = problem.stride();
    std::fill(scratch.o.begin(), scratch.o.end(), 0.0f);
    std::fill(scratch.row_max.begin(), scratch.row_max.end(), kNothing);
    std::fill(scratch.row_sum.begin(), scratch.row_sum.end(), 0.0f);
    const T* q = problem.q.as<const T>();
    for (int64_t row = 0; row < task.queries * group; ++row)
      KvBlocks<T>::template widen<N>(&scratch.q[row * stride],
                                     q + element(row / group, row % group), d, stride);
  }

  // Keys of [block, block + kBlock) that query i of the task sees, relative to the block.
  Keys seen_in(int64_t block, int64_t i) const {
    const Keys seen = problem.seen_from(task.position + i);
    return {std::max(seen.begin - block, int64_t{0}), std::min(seen.end - block, kBlock)};
  }

  // k and v point to the rows of the block's keys.
  template <int N, typename E>
  [[gnu::always_inline]] void attend_rows(int64_t row, int64_t end, Keys keys, const E* const* k,
                                          const E* const* v) const {
    // How many rows are taken together changes no bit: each has sums of its own, in the order of
    // its keys.
    for (; row + 4 <= end; row += 4) attend<N, 4>(row, keys, k, v);
    if (row + 2 <= end) {
      attend<N, 2>(row, keys, k, v);
      row += 2;
    }
    if (row < end) attend<N, 1>(row, keys, k, v);
  }

  // Takes keys of the block into `Rows` rows, all of which see them.
  template <int N, int Rows, typename E>
  [[gnu::always_inline]] void attend(int64_t row, Keys keys, const E* const* k,
                                     const E* const* v) const {
    const int64_t stride = problem.stride();
    score<N, Rows>(row, keys.begin, keys.end, k, stride);
    for (int r = 0; r < Rows; ++r) exp_scores<N>(row + r, keys.begin, keys.end, stride);
    accumulate_pv<N, Rows>(row, keys.begin, keys.end, v, stride);
  }

  // Sixteen sums in flight, whatever the rows. Keys outside [from, to) are overwritten.
  template <int N, int Rows, typename E>
  [[gnu::always_inline]] void score(int64_t row, int64_t from, int64_t to, const E* const* k,
                                    int64_t stride) const {
    constexpr int kKeys = simd::kWidest / Rows;
    const float* q = &scratch.q[row * stride];
    float* p = &scratch.p[row * kBlock];
    for (int64_t j = from / kKeys * kKeys; j < to; j += kKeys) {
      simd::F<N> sums[simd::kWidest];
      for (simd::F<N>& sum : sums) sum = simd::F<N>{};
      for (int64_t i = 0; i < stride; i += N) {
        simd::F<N> keys[kKeys];
        for (int c = 0; c < kKeys; ++c) keys[c] = simd::load<N>(k[j + c] + i);
        for (int r = 0; r < Rows; ++r) {
          const simd::F<N> query = simd::load<N>(q + r * stride + i);
          for (int c = 0; c < kKeys; ++c) sums[r * kKeys + c] += query * keys[c];
        }
      }
      // Between the sums, because a burst of requests fills the queue to memory and waits.
      if constexpr (!std::is_same_v<E, float>)
        for (int c = 0; c < kKeys; ++c) blocks.prefetch(problem.cache.k, j + c);
      float scores[simd::kWidest];
      for (int i = 0; i < simd::kWidest; i += N)
        simd::store<N>(scores + i, simd::sum_each<N>(sums + i) * problem.scale);
      for (int r = 0; r < Rows; ++r)
        std::memcpy(p + r * kBlock + j, scores + r * kKeys, sizeof(float) * kKeys);
    }
  }

  // Turns the scores of a row into probabilities relative to its running maximum, and rescales what
  // the row has summed so far where the maximum grew.
  template <int N>
  [[gnu::always_inline]] void exp_scores(int64_t row, int64_t from, int64_t to,
                                         int64_t stride) const {
    float* p = &scratch.p[row * kBlock];
    // e^-Inf is 0: such keys add nothing.
    std::fill(p, p + from, kNothing);
    std::fill(p + to, p + kBlock, kNothing);
    simd::F<N> widest = simd::load<N>(p);
    for (int64_t j = N; j < kBlock; j += N) {
      const simd::F<N> s = simd::load<N>(p + j);
      widest = s <= widest ? widest : s;  // keeps a NaN of s ..
    }
    float& row_max = scratch.row_max[row];
    const float before = row_max;
    for (int i = 0; i < N; ++i)
      if (!(widest[i] <= row_max) && !std::isnan(row_max))
        row_max = widest[i];  // .. and one of a lane
    // There is no maximum to be relative to as long as every score is -Inf.
    const float base = row_max == kNothing ? 0.0f : row_max;
    simd::F<N> sum = {};
    for (int64_t j = 0; j < kBlock; j += N) {
      const simd::F<N> e = simd::exp<N>(simd::load<N>(p + j) - base);
      sum += e;
      simd::store<N>(p + j, e);
    }
    float& row_sum = scratch.row_sum[row];
    if (before == row_max) {
      row_sum += simd::sum<N>(sum);
      return;
    }
    // Online softmax: with a new maximum m', sums relative to m are worth e^(m - m') of what they
    // were. The first block shrinks nothing: e^-Inf of zeros.
    const float shrink = simd::exp<4>(simd::all<4>(before - base))[0];
    row_sum = row_sum * shrink + simd::sum<N>(sum);
    float* o = &scratch.o[row * stride];
    for (int64_t i = 0; i < stride; i += N) simd::store<N>(o + i, simd::load<N>(o + i) * shrink);
  }

  template <int N, int Rows, typename E>
  [[gnu::always_inline]] void accumulate_pv(int64_t row, int64_t from, int64_t to,
                                            const E* const* v, int64_t stride) const {
    constexpr int kWide = N == 16 ? 4 : 2;  // as many sums as registers hold
    int64_t i = 0;
    for (; i + kWide * N <= stride; i += kWide * N)
      accumulate_pv<N, Rows, kWide>(row, from, to, v, i, stride);
    for (; i < stride; i += N) accumulate_pv<N, Rows, 1>(row, from, to, v, i, stride);
  }

  // Elements [i, i + Wide * N) of `Rows` outputs.
  template <int N, int Rows, int Wide, typename E>
  [[gnu::always_inline]] void accumulate_pv(int64_t row, int64_t from, int64_t to,
                                            const E* const* v, int64_t i, int64_t stride) const {
    float* o = &scratch.o[row * stride + i];
    const float* p = &scratch.p[row * kBlock];
    simd::F<N> sums[Rows][Wide];
    for (int r = 0; r < Rows; ++r)
      for (int w = 0; w < Wide; ++w) sums[r][w] = simd::load<N>(o + r * stride + w * N);
    for (int64_t j = from; j < to; ++j) {
      if constexpr (!std::is_same_v<E, float>)
        if (i == 0) blocks.prefetch(problem.cache.v, j);
      simd::F<N> values[Wide];
      for (int w = 0; w < Wide; ++w) values[w] = simd::load<N>(v[j] + i + w * N);
      for (int r = 0; r < Rows; ++r)
        for (int w = 0; w < Wide; ++w) sums[r][w] += values[w] * p[r * kBlock + j];
    }
    for (int r = 0; r < Rows; ++r)
      for (int w = 0; w < Wide; ++w) simd::store<N>(o + r * stride + w * N, sums[r][w]);
  }

  template <int N>
  [[gnu::always_inline]] void finish() const;
};

template <typename T>
template <int N>
[[gnu::always_inline]] inline void AttentionKernel<T>::finish() const {
  const int64_t d = problem.head_dim(), group = problem.group(), stride = problem.stride();
  T* out = problem.out.as<T>();
  for (int64_t row = 0; row < task.queries * group; ++row) {
    const Keys seen = problem.seen_from(task.position + row / group);
    const float row_sum = scratch.row_sum[row];
    // Scores that are all -Inf have no softmax; a query that sees no key has an empty sum.
    const float inv_row_sum = seen.begin == seen.end ? 0.0f
                              : row_sum == 0         ? std::numeric_limits<float>::quiet_NaN()
                                                     : 1.0f / row_sum;
    const float* o = &scratch.o[row * stride];
    T* to = out + element(row / group, row % group);
    for (int64_t i = 0; i < d; i += N)
      simd::store<N>(to + i, simd::load<N>(o + i) * inv_row_sum, d - i);
  }
}

// Throws unless the batch's values describe requests that share these queries.
void check_batch(const Problem& p, const AttentionBatch& batch) {
  const int64_t requests = batch.context_length.rows();
  const auto* start = batch.query_start.as<const int32_t>();
  const auto* length = batch.context_length.as<const int32_t>();
  if (start[0] != 0 || start[requests] != p.q.rows())
    refuse({BadIndex::Of::query_start, p.q.rows(), start[0], start[requests]});
  for (int64_t r = 0; r < requests; ++r) {
    if (start[r] > start[r + 1]) refuse({BadIndex::Of::query_order, start[r], start[r + 1], r});
    if (length[r] < 0) refuse({BadIndex::Of::context_length, 0, length[r], r});
  }
}

// Throws unless entries [first, last) of a page table exist and name pages of the pool.
void check_pages(const Problem& p, const TensorView& table, int64_t first, int64_t last) {
  const int64_t pages = p.cache.pages();
  if (table.count() < last)
    refuse({BadIndex::Of::attended_table, last, table.count(), p.cache.page_size()});
  for (int64_t i = first; i < last; ++i) {
    const int32_t page = table.as<const int32_t>()[i];
    if (page < 0 || page >= pages) refuse({BadIndex::Of::attended_page, pages, page, i});
  }
}

std::vector<Task> tasks_of(const Problem& problem, const AttentionBatch& batch) {
  std::vector<Task> tasks;
  const int64_t size = problem.cache.page_size();
  for (int64_t r = 0; r < batch.context_length.rows(); ++r) {
    const int64_t first = batch.query_start.as<const int32_t>()[r];
    const int64_t end = batch.query_start.as<const int32_t>()[r + 1];
    const int64_t length = batch.context_length.as<const int32_t>()[r];
    if (first == end) continue;
    const TensorView row = batch.page_table.slice(r, 1);
    const TensorView pages = row.reshaped({row.count()});
    const int64_t oldest = problem.seen_from(length - (end - first)).begin;
    check_pages(problem, pages, oldest / size, (length + size - 1) / size);
    // Tasks begin at a request's first query of the pass: which queries share one depends on the
    // chunk, and their bits do not.
    for (int64_t t = first; t < end; t += kQueries)
      tasks.push_back(
          {t, std::min(kQueries, end - t), length - (end - t), pages.as<const int32_t>()});
  }
  return tasks;
}

}  // namespace

void check_paged_attention(TensorView out, TensorView q, KvCache cache, AttentionBatch batch,
                           int64_t window, DeviceKind device) {
  constexpr auto kOp = "paged_attention";
  check_kv_cache(kOp, cache, device);
  check_rank(kOp, "q", q, 3);
  const int64_t heads = q.shape[1], kv_heads = cache.k.shape[2];
  check(heads % kv_heads == 0 && heads > 0,
        "paged_attention wants a number of heads that {} K/V heads divide, found {}", kv_heads,
        heads);
  check_tensor(kOp, "q", q, cache.k.dtype, {q.rows(), heads, cache.k.shape[3]}, device);
  check_tensor(kOp, "out", out, cache.k.dtype, q.shape, device);
  check(window >= 0, "paged_attention wants a window of 0 (none) or more keys, found {}", window);
  const auto& [query_start, context_length, page_table] = batch;
  check_rank(kOp, "context_length", context_length, 1);
  check_rank(kOp, "page_table", page_table, 2);
  const int64_t requests = context_length.rows();
  check_tensor(kOp, "query_start", query_start, DType::i32, {requests + 1}, device);
  check_tensor(kOp, "context_length", context_length, DType::i32, {requests}, device);
  check_tensor(kOp, "page_table", page_table, DType::i32, {requests, page_table.shape[1]}, device);
}

void paged_attention(const OpContext& context, TensorView out, TensorView q, KvCache cache,
                     AttentionBatch batch, float scale, int64_t window) {
  const Problem problem = {out, q, cache, scale, window};
  check_paged_attention(out, q, cache, batch, window, DeviceKind::cpu);
  check_batch(problem, batch);
  const std::vector<Task> tasks = tasks_of(problem, batch);
  const int64_t kv_heads = problem.kv_heads();
  dispatch("paged_attention", q.dtype, [&]<typename T>(T*) {
    // Each task and K/V head writes rows of its own, so that threads share nothing but what they
    // read.
    parallel_for(context.threads, tasks.size() * kv_heads, 1, [&](int64_t begin, int64_t end) {
      Scratch scratch(problem);
      for (int64_t i = begin; i < end; ++i)
        on_best_isa(AttentionKernel<T>{problem, tasks[i / kv_heads], scratch, i % kv_heads});
    });
  });
}

}  // namespace lockstep
