#include "kernels/gather_rows.h"

#include <cstring>

#include "kernels/base/arguments.h"
#include "kernels/base/bad_index.h"
#include "kernels/base/thread_pool.h"

namespace lockstep {

void check_gather_rows(TensorView out, TensorView index, TensorView table, DeviceKind device) {
  constexpr auto kOp = "gather_rows";
  check_rank(kOp, "table", table, 2);
  check_rank(kOp, "index", index, 1);
  check_storage(kOp, table.dtype);
  check_tensor(kOp, "table", table, table.dtype, table.shape, device);
  check_tensor(kOp, "index", index, DType::i32, index.shape, device);
  check_tensor(kOp, "out", out, table.dtype, {index.rows(), table.shape[1]}, device);
}

void gather_rows(const OpContext& context, TensorView out, TensorView index, TensorView table) {
  check_gather_rows(out, index, table, DeviceKind::cpu);
  const int64_t rows = index.rows(), entries = table.rows(), width = table.shape[1];
  const auto* which = index.as<const int32_t>();
  for (int64_t i = 0; i < rows; ++i)
    if (which[i] < 0 || which[i] >= entries)
      refuse({BadIndex::Of::table_row, entries, which[i], i});
  const int64_t bytes = width * size_of(table.dtype);
  // Pieces of 64 KiB at least, so that waking a thread for one of them pays.
  parallel_for(
      context.threads, rows, (int64_t{1} << 16) / (bytes + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          std::memcpy(out.as<char>() + i * bytes, table.as<char>() + which[i] * bytes, bytes);
      });
}

}  // namespace lockstep
