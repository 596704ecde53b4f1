#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/kv_cache.h"

namespace lockstep {
namespace {

// One block a token. A slot that several tokens name gets the row of any one of them.
template <typename Unit>
__global__ void write(Unit* cache_k, Unit* cache_v, const Unit* k, const Unit* v,
                      const int64_t* slots, int64_t pool, int64_t units, BadIndex* bad) {
  pdl_launch_dependents_and_wait();
  const int64_t token = blockIdx.x, slot = slots[token];
  if (slot >= pool && threadIdx.x == 0) report(bad, BadIndex::Of::slot, pool, slot, token);
  if (slot < 0 || slot >= pool) return;
  copy_row(cache_k + slot * units, k + token * units, units);
  copy_row(cache_v + slot * units, v + token * units, units);
}

// One block a position.
template <typename Unit>
__global__ void gather(Unit* out, const Unit* cache_k, const Unit* cache_v, const int32_t* table,
                       int64_t pages, int64_t page_size, int64_t units, BadIndex* bad) {
  const int64_t position = blockIdx.x, entry = position / page_size, page = table[entry];
  const bool known = page >= 0 && page < pages;
  if (!known && threadIdx.x == 0) report(bad, BadIndex::Of::gathered_page, pages, page, entry);
  const int64_t from = (page * page_size + position % page_size) * units;
  Unit* to = out + 2 * position * units;
  copy_row(to, known ? cache_k + from : nullptr, units);
  copy_row(to + units, known ? cache_v + from : nullptr, units);
}

}  // namespace

void kv_write_cuda(const OpContext& context, KvCache cache, TensorView k, TensorView v,
                   TensorView slots) {
  check_kv_write(cache, k, v, slots, DeviceKind::cuda);
  if (slots.rows() == 0) return;
  const int64_t bytes = k.row_size() * size_of(k.dtype);
  dispatch_copy(
      bytes,
      [&]<typename Unit>(Unit*) {
        launch_pdl("kv_write", context.stream, slots.rows(), kCopyThreads, write<Unit>,
                   cache.k.as<Unit>(), cache.v.as<Unit>(), k.as<const Unit>(), v.as<const Unit>(),
                   slots.as<const int64_t>(), cache.pages() * cache.page_size(),
                   bytes / int64_t{sizeof(Unit)}, bad_index_report());
      },
      cache.k.data, cache.v.data, k.data, v.data);
}

void kv_gather_cuda(const OpContext& context, TensorView out, KvCache cache,
                    TensorView page_table) {
  check_kv_gather(out, cache, page_table, DeviceKind::cuda);
  if (out.rows() == 0) return;
  const int64_t bytes = cache.k.shape[2] * cache.k.shape[3] * size_of(out.dtype);
  dispatch_copy(
      bytes,
      [&]<typename Unit>(Unit*) {
        gather<Unit><<<static_cast<unsigned>(out.rows()), kCopyThreads, 0, context.stream>>>(
            out.as<Unit>(), cache.k.as<const Unit>(), cache.v.as<const Unit>(),
            page_table.as<const int32_t>(), cache.pages(), cache.page_size(),
            bytes / int64_t{sizeof(Unit)}, bad_index_report());
      },
      cache.k.data, cache.v.data, out.data);
  cuda_check(cudaGetLastError(), "the launch of kv_gather");
}

}  // namespace lockstep
