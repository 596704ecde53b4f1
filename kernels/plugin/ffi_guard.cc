// Checks around a call of foreign code: inputs are hashed before and after, and the floating-point
// control word is put back and its change reported, since a library that sets flush-to-zero would
// change every result after it.
#include "kernels/plugin/ffi_guard.h"

#include <immintrin.h>
#include <xxhash.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/memory.h"

namespace lockstep {
namespace {

uint64_t hash_of(const TensorView& tensor) {
  if (tensor.device != Device::cpu) return hash_of(copy_on(Device::cpu, tensor));
  return XXH3_64bits(tensor.data, tensor.bytes());
}

// MXCSR without the flags of exceptions.
unsigned sse_control() { return _mm_getcsr() & ~static_cast<unsigned>(_MM_EXCEPT_MASK); }

}  // namespace

void InputGuard::add(const TensorView& tensor) {
  inputs_.push_back({tensor, tensor.empty() ? 0 : hash_of(tensor)});
}

void InputGuard::add(const KvCache& cache) {
  add(cache.k);
  add(cache.v);
}

void InputGuard::add(const AttentionBatch& batch) {
  add(batch.query_start);
  add(batch.context_length);
  add(batch.page_table);
}

void InputGuard::add(const std::vector<TensorView>& tensors) {
  for (const TensorView& tensor : tensors) add(tensor);
}

void InputGuard::check_unchanged(const std::string& who,
                                 const std::vector<std::string_view>& names) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const auto& [tensor, hash] = inputs_[i];
    check(
        tensor.empty() || hash_of(tensor) == hash,
        "{} changed its input {} {}: it may write its output alone, so put its scratch into memory "
        "of its own",
        who, names[std::min(i, names.size() - 1)], tensor.shape.text());
  }
}

FloatControlGuard::FloatControlGuard() : control_(sse_control()) { std::fegetenv(&found_); }

FloatControlGuard::~FloatControlGuard() { std::fesetenv(&found_); }

std::string_view FloatControlGuard::changed() const {
  std::fenv_t now;
  std::fegetenv(&now);
  const unsigned sse = sse_control() ^ control_;
  const unsigned x87 = now.__control_word ^ found_.__control_word;
  // Bits of the control words. Source: Intel SDM, volume 1, 8.1.5 and 10.2.3.
  constexpr unsigned kX87Rounding = 0xc00, kDenormalsAreZero = 0x40;
  if ((sse & _MM_ROUND_MASK) != 0 || (x87 & kX87Rounding) != 0) return "the rounding mode";
  if ((sse & (_MM_FLUSH_ZERO_MASK | kDenormalsAreZero)) != 0)
    return "whether subnormal numbers are zero";
  return sse != 0 || x87 != 0 ? "which exceptions trap, or the precision of x87" : "";
}

}  // namespace lockstep
