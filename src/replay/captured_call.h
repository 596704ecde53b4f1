// The call of an op as a user's library gets it, kept by value.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/ops.h"

namespace lockstep {

struct CapturedTensor {
  std::string name;  // of the argument: "x", "cache.k", "weights.3"
  Tensor data;       // on the host; empty: the op was called without it
};

// The tensors are copies on the host, whichever device the op ran on.
struct CapturedCall {
  std::string function;  // without its prefix: "rms_norm"
  std::string point;
  int layer = -1;
  std::vector<CapturedTensor> outputs;  // as the op finds them; their numbers mean nothing
  std::vector<CapturedTensor> inputs;   // in the order of the arguments
  std::vector<double> numbers;          // eps, scale, window, normalised
};

// Takes the arguments of one call, in their order. The arguments must be added in their order, as
// their names are counted off.
class CallCapture {
 public:
  CallCapture(std::string_view function, std::span<const std::string_view> inputs,
              const OpContext& context);

  void add_output(const TensorView& out) { add_output("out", out); }
  void add_output(const char* name, const TensorView& out) { put(call_.outputs, name, out); }
  void add_output(const KvCache& cache);
  void add(const TensorView& tensor) { put(call_.inputs, next_name(), tensor); }
  // An input of an op whose table has no names.
  void add(std::string name, const TensorView& tensor) {
    put(call_.inputs, std::move(name), tensor);
  }
  void add(const WeightView& weight) { add(weight.codes); }
  void add(const KvCache& cache);
  void add(const AttentionBatch& batch);
  void add(const std::vector<TensorView>& all);
  void add(float x) { call_.numbers.push_back(static_cast<double>(x)); }
  void add(int64_t x) { call_.numbers.push_back(static_cast<double>(x)); }
  void add(bool x) { call_.numbers.push_back(x ? 1 : 0); }

  CapturedCall take() { return std::move(call_); }

 private:
  static void put(std::vector<CapturedTensor>& to, std::string name, const TensorView& tensor);
  std::string next_name();

  CapturedCall call_;
  std::span<const std::string_view> names_;
  size_t next_ = 0;
};

}  // namespace lockstep
