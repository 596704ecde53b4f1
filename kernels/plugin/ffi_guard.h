// What a function of a foreign library must leave as it found it.
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

// The inputs of one call. Knows them by a hash of their bytes, so that it takes no memory of the
// size of a weight; a tensor of a device is copied to the host to be hashed. A cache counts whole:
// a page of another request is the worst that an attention could write.
class Inputs {
 public:
  // Called once for each argument, outputs left out, in the order of the call. Numbers are no
  // tensors, and an empty tensor has nothing to change.
  void add(const TensorView& tensor);
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

// How this thread's floating-point numbers are rounded, which of them become zero, and which trap.
class FloatControl {
 public:
  FloatControl();
  // Puts back what was found, the flags of exceptions too.
  ~FloatControl();
  FloatControl(const FloatControl&) = delete;
  FloatControl& operator=(const FloatControl&) = delete;

  // What is set otherwise than it was found, in words; empty when nothing is. Flags do not count.
  std::string_view changed() const;

 private:
  std::fenv_t found_;
  unsigned control_;  // of SSE
};

}  // namespace lockstep
