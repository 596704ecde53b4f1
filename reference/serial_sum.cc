// An addition waits for the one before it. So some rows are added up side by side, each in the
// order of its elements.
#include "reference/serial_sum.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <vector>

#include "reference/bridge.h"
#include "reference/own_stream.h"
#include "reference/serial_sum_kernels.h"

namespace lockstep {
namespace {

// The errors of kRows rows that follow each other.
template <size_t kRows>
void add_up(const double* rows, int64_t width, double* errors) {
  float sums[kRows] = {};
  double exact[kRows] = {};
  for (int64_t i = 0; i < width; ++i)
    for (size_t row = 0; row < kRows; ++row) {
      const double x = rows[row * width + i], square = x * x;
      sums[row] += static_cast<float>(square);
      exact[row] += square;
    }
  for (size_t row = 0; row < kRows; ++row) {
    const double off = std::fabs(double{sums[row]} - exact[row]);
    errors[row] = exact[row] > 0 && std::isfinite(off) ? off / exact[row] * 0x1p24 : 0;
  }
}

}  // namespace

Numbers errors_of_serial_squares(const at::Tensor& x) {
  constexpr int64_t kTogether = 8;
  const int64_t width = x.size(-1), count = width > 0 ? x.numel() / width : 0;
  if (!x.is_cpu() && has_serial_sum_kernels()) {
    const at::Tensor there = x.contiguous(), made = at::empty({count}, x.options());
    serial_squares(queue_of_this_thread(x.device()), there.const_data_ptr<double>(), count, width,
                   made.mutable_data_ptr<double>());
    return to_numbers(made);
  }
  const at::Tensor rows = on_host(x);
  const double* const all = rows.const_data_ptr<double>();
  std::vector<double> errors(static_cast<size_t>(count));
  int64_t row = 0;
  for (; row + kTogether <= count; row += kTogether)
    add_up<kTogether>(all + row * width, width, errors.data() + row);
  for (; row < count; ++row) add_up<1>(all + row * width, width, errors.data() + row);
  return errors;
}

}  // namespace lockstep
