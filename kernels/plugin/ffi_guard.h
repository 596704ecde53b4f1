// Guards around the call of a foreign function: it must leave its inputs and the floating-point
// control of the thread as it found them.
#pragma once

#include <cfenv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/tensor.h"
#include "kernels/kv_cache.h"
#include "kernels/paged_attention.h"

namespace lockstep {

// A guard of the inputs of one call, owned by the caller's stack. It keeps hashes of their bytes,
// so that it takes no memory of the size of a weight; a tensor of a device is copied to the host to
// be hashed. A cache counts whole, because a page of another request is the worst that an attention
// could write. Borrows the tensors, which must stay where they are until the check.
class InputGuard {
 public:
  // Called once for each argument, outputs left out, in the order of the call. Numbers are no
  // tensors, and an empty tensor has nothing to change.
  void add(const TensorView& tensor);
  void add(const WeightView& weight) { add(weight.codes); }  // a foreign function gets plain ones
  void add(const KvCache& cache);
  void add(const AttentionBatch& batch);
  void add(const std::vector<TensorView>& tensors);
  void add(float) {}
  void add(int64_t) {}
  void add(bool) {}

  // Throws Error when one has other bytes now than when it was added: `who` wrote it. `names` are
  // those of the tensors; the last is that of all which are left.
  void check_unchanged(const std::string& who, const std::vector<std::string_view>& names) const;

 private:
  struct Input {
    TensorView tensor;
    uint64_t hash;
  };
  std::vector<Input> inputs_;
};

// A guard of this thread's floating-point control: rounding, flushing of subnormals, traps. On the
// stack of the thread that it guards.
class FloatControlGuard {
 public:
  FloatControlGuard();
  // Puts back what was found, the flags of exceptions too.
  ~FloatControlGuard();
  FloatControlGuard(const FloatControlGuard&) = delete;
  FloatControlGuard& operator=(const FloatControlGuard&) = delete;

  // The setting that differs from what was found, in words; empty when none does. Flags do not
  // count.
  std::string_view changed() const;

 private:
  std::fenv_t found_;
  unsigned control_;  // of SSE
};

}  // namespace lockstep
