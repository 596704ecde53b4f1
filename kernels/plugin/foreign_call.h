// One call of a function of a user's library: its arguments in C, its guards, its outputs.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/memory.h"
#include "kernels/base/stream.h"
#include "kernels/kv_cache.h"
#include "kernels/lockstep_ops.h"
#include "kernels/paged_attention.h"
#include "kernels/plugin/crash_watch.h"
#include "kernels/plugin/ffi_guard.h"
#include "kernels/plugin/guarded_output.h"
#include "kernels/plugin/op_refusal.h"

namespace lockstep {

// DLPack's name of a dtype, one lane.
DLDataType data_type_of(DType dtype);

// Adds to what user_op_seconds() says on this thread.
void add_user_op_seconds(double seconds);

// The arguments of one call in C. What it hands out lives as long as it does.
class Arguments {
 public:
  // `before` bytes of memory before its first element belong to the tensor too. Readers of DLPack
  // such as torch take no byte_offset: the first element is where `data` is. An empty tensor is a
  // null pointer.
  const DLTensor* operator()(const TensorView& tensor, uint64_t before = 0) {
    if (tensor.empty()) return nullptr;
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data);
    if (tensor.device != Device::cpu) device_ = tensor.device;
    if (tensor.device != Device::cpu)
      on_device_.push_back({begin - before, begin + static_cast<uintptr_t>(tensor.bytes())});
    const DLDevice device =
        tensor.device != Device::cpu ? DLDevice{kDLCUDA, tensor.device.index} : DLDevice{kDLCPU, 0};
    const auto extents = tensor.shape.extents();
    std::ranges::copy(extents, shapes_.emplace_back().begin());
    return &tensors_.emplace_back(DLTensor{.data = tensor.data,
                                           .device = device,
                                           .ndim = tensor.shape.rank(),
                                           .dtype = data_type_of(tensor.dtype),
                                           .shape = shapes_.back().data(),
                                           .strides = nullptr,
                                           .byte_offset = 0});
  }
  // The C interface has plain weights alone.
  const DLTensor* operator()(const WeightView& weight) {
    return (*this)(plain_codes("--ops", weight));
  }
  const LockstepCache* operator()(const KvCache& cache) {
    cache_ = {(*this)(cache.k), (*this)(cache.v)};
    return &cache_;
  }
  const LockstepBatch* operator()(const AttentionBatch& batch) {
    batch_ = {(*this)(batch.query_start), (*this)(batch.context_length), (*this)(batch.page_table)};
    return &batch_;
  }
  const DLTensor* const* operator()(const std::vector<TensorView>& all) {
    auto& pointers = lists_.emplace_back();
    for (const TensorView& one : all) pointers.push_back((*this)(one));
    return pointers.data();
  }
  float operator()(float x) { return x; }
  int64_t operator()(int64_t x) { return x; }
  int32_t operator()(bool x) { return x ? 1 : 0; }

  // The arguments in C that an argument in C++ becomes: of a list its length too.
  template <typename In>
  auto in_c(const In& in) {
    if constexpr (std::is_same_v<In, std::vector<TensorView>>)
      return std::tuple((*this)(in), static_cast<int64_t>(in.size()));
    else
      return std::tuple((*this)(in));
  }

  // Where its tensors are that the host cannot read.
  std::span<const AddressRange> on_device() const { return on_device_; }
  Device device() const { return device_; }

 private:
  // Deques: pointers into them must stay right while more are added.
  std::deque<DLTensor> tensors_;
  std::deque<std::array<int64_t, 5>> shapes_;
  std::deque<std::vector<const DLTensor*>> lists_;
  std::vector<AddressRange> on_device_;
  Device device_;
  LockstepCache cache_{};
  LockstepBatch batch_{};
};

// An op of the library, and how its errors begin.
struct UserOp {
  std::string_view name;
  std::string library;
  AddressRange code;                     // of the library
  std::vector<std::string_view> inputs;  // what its tensors are called, in order

  std::string at(const OpContext& context) const {
    const std::string layer = context.layer < 0 ? "" : fmt::format("layer {} ", context.layer);
    return fmt::format("{} of {} at {}{}", name, library, layer, context.point);
  }
  // Calls its function with `in`, made by `arguments`, and waits for what it queued on a device.
  // Throws OpRefusal when it says that it failed, and Error when it left the floating-point control
  // of this thread changed, which all ops after it would feel. Ends the process in one sentence
  // when it crashes or exits.
  template <typename Function, typename... In>
  void call(const OpContext& context, const Arguments& arguments, Function* function,
            In... in) const {
    // Made before the call: within the watch nothing may be allocated on behalf of a sentence.
    const std::string who = at(context), point(context.point);
    const LockstepCall call = {point.c_str(), context.layer, context.stream};
    const bool on_device = !arguments.on_device().empty();
    if (on_device)
      wait_for(arguments.device());  // so that other ops' trouble is not taken for its own
    const FloatControlGuard control;
    const auto begin = std::chrono::steady_clock::now();
    const char* trouble = [&] {
      const CrashWatch watch(who, code, arguments.on_device());
      return function(&call, in...);
    }();
    if (trouble != nullptr) throw OpRefusal(fmt::format("{} failed: {}", who, trouble));
    if (on_device) wait_for_kernels_of(who, arguments.device());
    add_user_op_seconds(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    const std::string_view changed = control.changed();
    check(
        changed.empty(),
        "{} changed {}: put this thread's floating-point control back before it returns (fegetenv, "
        "fesetenv)",
        who, changed);
  }

 private:
  static void wait_for_kernels_of(const std::string& who, Device device) {
    try {
      wait_for(device);
    } catch (const Error& error) {
      fail("{} returned, but its kernels failed: {}; compute-sanitizer shows where", who,
           error.what());
    }
  }
};

// A call of a user's op, on the caller's stack. What is handed to the function is made first, in
// any order: inputs, which it must leave as they are, and outputs, which show what it wrote. It
// lives for one call.
class ForeignCall {
 public:
  ForeignCall(const UserOp& user, const OpContext& context) : user_(user), context_(context) {}

  // The arguments in C that an input becomes.
  template <typename In>
  auto input(const In& in) {
    inputs_.add(in);
    return arguments_.in_c(in);
  }
  // The same of a tensor, which may be none. Inputs have the names of UserOp::inputs in the order
  // in which they are made.
  const DLTensor* tensor(const TensorView& in) {
    inputs_.add(in);
    return arguments_(in);
  }
  const DLTensor* output(const TensorView& out) {
    return arguments_(outputs_.emplace_back(out).view(), GuardedOutput::kGuardBytes);
  }
  // A cache is written where it is: what lies beside a slot is another request's.
  const LockstepCache* output(const KvCache& cache) { return arguments_(cache); }

  // Throws Error as UserOp::call does, and where an input was written, or an output beside it or
  // not whole; else the outputs are handed on.
  template <typename Function, typename... In>
  void run(Function* function, In... in) {
    user_.call(context_, arguments_, function, in...);
    inputs_.check_unchanged(user_.at(context_), user_.inputs);
    for (GuardedOutput& output : outputs_) output.take(user_.at(context_));
  }

 private:
  const UserOp& user_;
  const OpContext& context_;
  InputGuard inputs_;
  Arguments arguments_;
  std::deque<GuardedOutput> outputs_;
};

}  // namespace lockstep
