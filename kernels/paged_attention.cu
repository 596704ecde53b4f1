#include <bit>

#include "kernels/base/memory.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/paged_attention.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxPartials = int64_t{1} << 28;  // elements: more than that is no decoding

// Merges the partial results of a row, in the order of its splits; a block a row.
template <typename T>
__global__ void combine_splits(AttentionArguments<T> a) {
  pdl_launch_dependents();
  const int64_t token = blockIdx.x / a.heads;
  const int head = blockIdx.x % a.heads;
  int q_tile = token;
  const Queries queries = locate_q_tile(a, 1, 1, q_tile);
  pdl_wait();
  if (queries.request < 0) return;
  const int position = queries.position(token);
  const KeyRange visible = visible_keys(a, position);
  const int element = min(static_cast<int>(threadIdx.x), a.head_dim - 1);
  const int end = (visible.end + kSplitKeys - 1) / kSplitKeys;
  Softmax softmax;
  float sum = 0;
  for (int first = visible.begin / kSplitKeys; first < end; first += kWarp)
    sum = merge_splits<kWarp>(softmax, sum, first, min(end - first, kWarp), a.kv_splits, a.head_dim,
                              element, [&](int split) { return a.partial(token, head, split); });
  if (threadIdx.x < a.head_dim)
    a.out[int64_t{blockIdx.x} * a.head_dim + element] =
        narrow<T>(scaled(sum, inv_row_sum(softmax, position)));
}

template <typename T>
AttentionArguments<T> arguments_of(const TensorView& out, const TensorView& q, const KvCache& cache,
                                   const AttentionBatch& batch, float scale, int64_t window) {
  const int64_t table_pages = batch.page_table.shape[1];
  return {.out = out.as<T>(),
          .q = q.as<const T>(),
          .k = cache.k.as<const T>(),
          .v = cache.v.as<const T>(),
          .query_start = batch.query_start.as<const int32_t>(),
          .context_length = batch.context_length.as<const int32_t>(),
          .page_table = batch.page_table.as<const int32_t>(),
          .tokens = q.rows(),
          .requests = batch.context_length.rows(),
          .pages = cache.pages(),
          .page_size = cache.page_size(),
          .table_pages = table_pages,
          .page_shift = std::has_single_bit(static_cast<uint64_t>(cache.page_size()))
                            ? std::countr_zero(static_cast<uint64_t>(cache.page_size()))
                            : -1,
          .heads = static_cast<int>(q.shape[1]),
          .kv_heads = static_cast<int>(cache.k.shape[2]),
          .head_dim = static_cast<int>(q.shape[2]),
          .group = static_cast<int>(q.shape[1] / cache.k.shape[2]),
          .scale = scale,
          .window = static_cast<int>(std::min<int64_t>(window, INT32_MAX / 2)),
          .bad = bad_index_report(),
          .partials = nullptr,
          .kv_splits = static_cast<int>(std::max<int64_t>(
              1, (table_pages * cache.page_size() + kSplitKeys - 1) / kSplitKeys))};
}

template <typename T>
void attend(const OpContext& context, AttentionArguments<T> a, Device device) {
  // Few queries a request do not fill a device, but their splits do.
  const int64_t partials = a.tokens * a.heads * a.kv_splits * a.partial_size();
  const bool few = partials <= kMaxPartials && a.tokens * a.group <= 64 * a.requests;
  if (few && attend_in_clusters(context, a)) return;
  const bool apart = few && a.kv_splits > 1;
  Tensor memory;
  if (apart) {
    memory = Tensor({partials}, DType::f32, device);
    a.partials = memory.as<float>();
  }
  const bool done = few ? attend_splits_on_tensor_cores(context, a)
                        : attend_by_warpgroups(context, a) || attend_on_tensor_cores(context, a);
  if (!done) attend_by_rows(context, a);
  if (!apart) return;
  const int threads = (a.head_dim + kWarp - 1) / kWarp * kWarp;
  launch_pdl("paged_attention", context.stream, a.tokens * a.heads, threads, combine_splits<T>, a);
}

}  // namespace

void paged_attention_cuda(const OpContext& context, TensorView out, TensorView q, KvCache cache,
                          AttentionBatch batch, float scale, int64_t window) {
  check_paged_attention(out, q, cache, batch, window, DeviceKind::cuda);
  check(
      q.shape[2] <= kWidestHead && cache.page_size() <= INT32_MAX,
      "paged_attention on the CUDA device takes heads of at most {} elements and pages of at most "
      "{} positions, found {} and {}: use --device cpu",
      kWidestHead, INT32_MAX, q.shape[2], cache.page_size());
  if (out.count() == 0) return;
  dispatch_cuda(q.dtype, [&]<typename T>(T*) {
    attend(context, arguments_of<T>(out, q, cache, batch, scale, window), out.device);
  });
}

}  // namespace lockstep
