// A sum of n positive products in fp32 is off by n u of itself at most, in whatever order it is
// made, and by one u more where x had to be rounded to fp32. So few are summed in fp32 that this is
// less than kAbove, and such parts are added in fp64: enlarged by kAbove, none is too small.
#include "reference/magnitudes.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

namespace lockstep {
namespace {

constexpr int64_t kTerms = 128;
constexpr double kAbove = 1e-5;
static_assert((kTerms + 2) * 0x1p-24 < kAbove);
// Below, products that fp32 has few digits of may be a part of the sum; above, it may overflow.
constexpr double kLeast = 0x1p-80, kMost = 0x1p120;

}  // namespace

at::Tensor magnitudes_in_fp32(const at::Tensor& x, const at::Tensor& w) {
  const at::Tensor w_size = w.abs();
  const int64_t terms = x.size(1);
  const at::Tensor part = at::empty({x.size(0), w.size(0)}, x.options());
  at::Tensor sums = at::empty({x.size(0), w.size(0)}, x.options().dtype(at::kDouble));
  const int64_t count = sums.numel();
  double* const to = sums.mutable_data_ptr<double>();
  std::fill_n(to, count, 0.0);
  at::Tensor into = part;
  for (int64_t first = 0; first < terms; first += kTerms) {
    const int64_t some = std::min(kTerms, terms - first);
    at::mm_out(into, x.narrow(1, first, some), w_size.narrow(1, first, some).t());
    const float* const from = part.const_data_ptr<float>();
    for (int64_t i = 0; i < count; ++i) to[i] += double{from[i]};
  }
  double least = kMost, most = 0;
  bool numbers = true;
  for (int64_t i = 0; i < count; ++i) {
    to[i] *= 1 + kAbove;
    least = std::min(least, to[i]);
    most = std::max(most, to[i]);
    numbers = numbers && to[i] == to[i];
  }
  if (!numbers || least < kLeast || most > kMost) return {};
  return sums;
}

}  // namespace lockstep
