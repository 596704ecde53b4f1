// The call of an op as a user's library gets it, kept by value.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/ops.h"

namespace lockstep {

// The tensors are copies on the host, whichever device the op ran on.
struct CapturedCall {
  // A tensor that is given to the op.
  struct Operand {
    std::string name;        // of the argument: "x", "cache.k", "weights.3"
    Tensor data;             // on the host; empty: the op was called without it
    bool is_weight = false;  // of a product: row i of it makes column i of the output
  };

  // An argument of the op as lockstep_ops.h declares it.
  struct Argument {
    // list: an array of tensors; counted: one that is followed by its length.
    enum class Type : uint8_t { tensor, cache, batch, list, counted, float32, int64, int32 };
    Type type = Type::tensor;
    size_t first = 0, count = 0;  // the operands of `inputs` that it is made of
    double number = 0;            // of float32, int64 and int32: eps, scale, window, normalised
  };

  std::string function;  // without its prefix: "rms_norm"
  std::string point;
  int layer = -1;
  std::vector<Operand> outputs;     // as the op finds them; their numbers mean nothing
  std::vector<Operand> inputs;      // in the order of the arguments
  std::vector<Argument> arguments;  // after the outputs, in their order
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
  void add(const TensorView& tensor);
  void add(const WeightView& weight);
  void add(const KvCache& cache);
  void add(const AttentionBatch& batch);
  void add(const std::vector<TensorView>& weights);  // of experts
  void add_weights(const std::vector<TensorView>& weights);
  void add_list(const std::vector<TensorView>& tensors);
  void add(float x) { add(Type::float32, static_cast<double>(x)); }
  void add(int64_t x) { add(Type::int64, static_cast<double>(x)); }
  void add(bool x) { add(Type::int32, x ? 1 : 0); }

  CapturedCall take() { return std::move(call_); }

 private:
  using Type = CapturedCall::Argument::Type;
  static CapturedCall::Operand& put(std::vector<CapturedCall::Operand>& to, std::string name,
                                    const TensorView& tensor);
  void add(Type type, double number) { call_.arguments.push_back({type, 0, 0, number}); }
  void add(Type type, std::initializer_list<TensorView> tensors);
  void add(Type type, const std::vector<TensorView>& tensors, bool are_weights);
  std::string next_name();

  CapturedCall call_;
  std::span<const std::string_view> names_;
  size_t next_ = 0;
};

}  // namespace lockstep
