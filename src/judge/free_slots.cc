#include "src/judge/free_slots.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/dtype.h"

namespace lockstep {
namespace {

// Bits are compared, since no NaN equals another.
template <typename T>
bool is_filled(const TensorView& rows, int64_t row, float fill) {
  const T free = from_float<T>(fill);
  const T* first = rows.as<const T>() + row * rows.row_size();
  return std::all_of(first, first + rows.row_size(),
                     [&](const T& x) { return std::memcmp(&x, &free, sizeof free) == 0; });
}

}  // namespace

bool holds_fill(const TensorView& rows, int64_t row, float fill) {
  if (rows.dtype == DType::bf16) return is_filled<BFloat16>(rows, row, fill);
  if (rows.dtype == DType::f16) return is_filled<Float16>(rows, row, fill);
  return rows.dtype == DType::f32 && is_filled<float>(rows, row, fill);
}

}  // namespace lockstep
