#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/gather_rows.h"

namespace lockstep {
namespace {

// One block a row.
template <typename Unit>
__global__ void gather(Unit* out, const int32_t* index, const Unit* table, int64_t entries,
                       int64_t units, BadIndex* bad) {
  pdl_launch_dependents_and_wait();
  const int64_t row = blockIdx.x, from = index[row];
  const bool known = from >= 0 && from < entries;
  if (!known && threadIdx.x == 0) report(bad, BadIndex::Of::table_row, entries, from, row);
  copy_row(out + row * units, known ? table + from * units : nullptr, units);
}

}  // namespace

void gather_rows_cuda(const OpContext& context, TensorView out, TensorView index,
                      TensorView table) {
  check_gather_rows(out, index, table, DeviceKind::cuda);
  if (out.count() == 0) return;
  const int64_t bytes = table.shape[1] * size_of(table.dtype);
  dispatch_copy(
      bytes,
      [&]<typename Unit>(Unit*) {
        launch_pdl("gather_rows", context.stream, index.rows(), kCopyThreads, gather<Unit>,
                   out.as<Unit>(), index.as<const int32_t>(), table.as<const Unit>(), table.rows(),
                   bytes / int64_t{sizeof(Unit)}, bad_index_report());
      },
      out.data, table.data);
}

}  // namespace lockstep
