#include "reference/serial_sum.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <vector>

#include "reference/bridge.h"

namespace lockstep {

Numbers errors_of_serial_squares(const at::Tensor& x) {
  const at::Tensor rows = on_host(x).contiguous();
  const int64_t width = rows.size(-1), count = width > 0 ? rows.numel() / width : 0;
  const double* next = rows.const_data_ptr<double>();
  std::vector<double> errors(static_cast<size_t>(count));
  for (double& error : errors) {
    float sum = 0;
    double exact = 0;
    for (const double* end = next + width; next != end; ++next) {
      const double square = *next * *next;
      sum += static_cast<float>(square);
      exact += square;
    }
    const double off = std::fabs(static_cast<double>(sum) - exact);
    if (exact > 0 && std::isfinite(off)) error = off / exact * 0x1p24;
  }
  return errors;
}

}  // namespace lockstep
