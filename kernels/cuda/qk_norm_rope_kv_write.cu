// The steps between the projections of q, k, v and attention, in one kernel of a warp a head: norm
// of q and k, rotation, and the write of K and V into their pages. A head is read once and passes
// through registers and shared memory; each step is the arithmetic of its own op (rms_norm.cuh,
// rope.cuh), in the same order, with the same roundings, so that the fused path shows the bits of
// the pieces.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/fused.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace lockstep {
namespace {

constexpr int kWarps = 4;  // of a block
// A lane has kShare elements of a head, and half as many pairs.

// q or k, as they pass through.
template <typename T>
struct HeadTensors {
  const T* x;
  const T* weight;  // null: no norm
  T* norm;          // or null
  T* out;           // or null
};

template <typename T>
struct Arguments {
  HeadTensors<T> q, k;
  const T* v;
  T* cache_k;
  T* cache_v;
  const int64_t* slots;
  RopeTables tables;
  int64_t pool;
  int heads, kv_heads, dim;
  float eps;
};

// Norm and rotation of one head, whose memory begins at element `at`; then
// keep(i, element i).
template <typename T, int kShare, typename Keep>
__device__ void rotate_head(const Arguments<T>& a, const HeadTensors<T>& x, int64_t at,
                            const NarrowRow<T, kShare>& weight,
                            const Rotation (&rotations)[kShare / 2], float* shared, Keep keep) {
  const auto lane = static_cast<int>(threadIdx.x % kWarp), half = static_cast<int>(a.tables.half);
  NarrowRow<T, kShare> row;
  row.read(x.x + at, a.dim);
  if (x.weight != nullptr) {
    row.normalise(weight, a.dim, a.eps);
    if (x.norm != nullptr) row.write(x.norm + at, a.dim);
  }
#pragma unroll
  for (int c = 0; c < kShare; ++c) shared[lane + c * kWarp] = widen(row.e[c]);
  __syncwarp();
  const auto write = [&](int i, float value) {
    const T rounded = narrow<T>(value);
    if (x.out != nullptr) x.out[at + i] = rounded;
    keep(i, rounded);
  };
#pragma unroll
  for (int c = 0; c < kShare / 2; ++c) {
    const int j = lane + c * kWarp;
    if (j >= half) break;
    const float low = shared[j], high = shared[j + half];
    write(j, rotations[c].low(low, high));
    write(j + half, rotations[c].high(low, high));
  }
}

// A warp a head of a token (blockIdx.x): first those of q, then of k, then of v.
template <typename T, int kShare>
__global__ void __launch_bounds__(kWarps* kWarp) qk_norm_rope_kv_write(Arguments<T> a) {
  __shared__ float rows[kWarps][kNarrowRow];
  pdl_launch_dependents();
  const int64_t token = blockIdx.x;
  const int warp = threadIdx.x / kWarp;
  const int head = static_cast<int>(blockIdx.y) * kWarps + warp;
  const bool is_q = head < a.heads, is_k = !is_q && head < a.heads + a.kv_heads;
  NarrowRow<T, kShare> weight;
  if (is_q && a.q.weight != nullptr) weight.read(a.q.weight, a.dim);
  if (is_k && a.k.weight != nullptr) weight.read(a.k.weight, a.dim);
  const int lane = threadIdx.x % kWarp;
  Rotation rotations[kShare / 2];
#pragma unroll
  for (int c = 0; c < kShare / 2; ++c)
    if ((is_q || is_k) && lane + c * kWarp < a.tables.half)
      rotations[c] = Rotation(a.tables, token, lane + c * kWarp);
  const int64_t slot = a.slots[token];
  pdl_wait();
  if (is_q)
    return rotate_head(a, a.q, (token * a.heads + head) * a.dim, weight, rotations, rows[warp],
                       [](int, T) {});
  const int kv_head = head - a.heads - (is_k ? 0 : a.kv_heads);
  if (kv_head >= a.kv_heads) return;
  if (slot >= a.pool && lane == 0) report(a.tables.bad, BadIndex::Of::slot, a.pool, slot, token);
  const bool kept = slot >= 0 && slot < a.pool;
  const int64_t at = (token * a.kv_heads + kv_head) * a.dim,
                to = (slot * a.kv_heads + kv_head) * a.dim;
  if (is_k) {
    rotate_head(a, a.k, at, weight, rotations, rows[warp], [&](int i, T value) {
      if (kept) a.cache_k[to + i] = value;
    });
  } else if (kept) {
    NarrowRow<T, kShare> row;
    row.read(a.v + at, a.dim);
    row.write(a.cache_v + to, a.dim);
  }
}

// The arguments of each piece, as it would check them; what a tap would hold is like what it is
// made of.
void check_pieces(const QkNormRopeKvWrite& h) {
  const auto or_like = [](const TensorView& tap, const TensorView& other) {
    return tap.empty() ? other : tap;
  };
  for (const auto& [norm, x, weight] :
       {std::tuple(h.q_norm, h.q, h.q_weight), {h.k_norm, h.k, h.k_weight}})
    if (!weight.empty()) check_rms_norm(or_like(norm, x), x, weight);
  check_rope(h.q_rope, h.q, h.cos, h.sin, h.positions, DeviceKind::cuda);
  check_rope(or_like(h.k_rope, h.k), h.k, h.cos, h.sin, h.positions, DeviceKind::cuda);
  check_kv_write(h.cache, h.k, h.v, h.slots, DeviceKind::cuda);
}

}  // namespace

void qk_norm_rope_kv_write_cuda(const OpContext& context, const QkNormRopeKvWrite& h) {
  check_pieces(h);
  const int64_t tokens = h.q.rows(), dim = h.q.shape[2];
  check(dim <= kNarrowRow,
        "qk_norm_rope_kv_write takes heads of at most {} elements, found {}: call its pieces",
        kNarrowRow, dim);
  if (tokens == 0) return;
  dispatch_cuda(h.q.dtype, [&]<typename T>(T*) {
    const Arguments<T> a = {
        .q = {h.q.as<const T>(), h.q_weight.as<const T>(), h.q_norm.as<T>(), h.q_rope.as<T>()},
        .k = {h.k.as<const T>(), h.k_weight.as<const T>(), h.k_norm.as<T>(), h.k_rope.as<T>()},
        .v = h.v.as<const T>(),
        .cache_k = h.cache.k.as<T>(),
        .cache_v = h.cache.v.as<T>(),
        .slots = h.slots.as<const int64_t>(),
        .tables = rope_tables(h.cos, h.sin, h.positions),
        .pool = h.cache.pages() * h.cache.page_size(),
        .heads = static_cast<int>(h.q.shape[1]),
        .kv_heads = static_cast<int>(h.k.shape[1]),
        .dim = static_cast<int>(dim),
        .eps = h.eps};
    const dim3 blocks(tokens, (a.heads + 2 * a.kv_heads + kWarps - 1) / kWarps);
    // Most heads are half as wide as any may be, and half as much work.
    const auto kernel = dim <= kNarrowRow / 2 ? qk_norm_rope_kv_write<T, kNarrowShare / 2>
                                              : qk_norm_rope_kv_write<T, kNarrowShare>;
    launch_pdl("heads", context.stream, blocks, kWarps * kWarp, kernel, a);
  });
}

}  // namespace lockstep
