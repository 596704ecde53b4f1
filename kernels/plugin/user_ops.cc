// A call of a user's function in the place of an op, step by step: inputs are remembered
// (InputGuard), the output is memory of our own that is filled with a pattern and has guard bytes
// around it (GuardedOutput), arguments become DLPack tensors (Arguments), a crash is watched for
// (CrashWatch), and afterwards inputs, guards, pattern and the thread's floating-point control are
// looked at. So a wrong kernel ends in a sentence about itself, and not in a wrong verdict about
// another op.
#include "kernels/plugin/user_ops.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/memory.h"
#include "kernels/base/nearest.h"
#include "kernels/base/printable.h"
#include "kernels/lockstep_ops.h"
#include "kernels/plugin/crash_watch.h"
#include "kernels/plugin/exports.h"
#include "kernels/plugin/ffi_guard.h"
#include "kernels/plugin/guarded_output.h"
#include "kernels/plugin/python_ops.h"

namespace lockstep {
namespace {

DLDataType data_type_of(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * size_of(dtype));
  if (dtype == DType::bf16) return {kDLBfloat, bits, 1};
  if (is_float(dtype)) return {kDLFloat, bits, 1};
  return {static_cast<uint8_t>(dtype == DType::u8 ? kDLUInt : kDLInt), bits, 1};
}

// The arguments of one call in C. What it hands out lives as long as it does.
class Arguments {
 public:
  // `before` bytes of memory before its first element belong to the tensor too. Readers of DLPack
  // such as torch take no byte_offset: the first element is where `data` is.
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
  std::deque<DLTensor> tensors_;
  std::deque<std::array<int64_t, 5>> shapes_;
  std::deque<std::vector<const DLTensor*>> lists_;
  std::vector<AddressRange> on_device_;
  Device device_;
  LockstepCache cache_{};
  LockstepBatch batch_{};
};

// The function in lockstep_ops.h of an op with arguments of these types.
template <typename... Tuples>
struct Joined;
template <typename... C>
struct Joined<std::tuple<C...>> {
  using Function = const char*(const LockstepCall*, C...);
};
template <typename... In>
using FunctionOf = typename Joined<decltype(std::tuple_cat(
    std::declval<Arguments>().in_c(std::declval<std::decay_t<In>>())...))>::Function;

thread_local double seconds_taken = 0;

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
  // Throws Error when it failed, or left the floating-point control of this thread changed, which
  // all ops after it would feel. Ends the process in one sentence when it crashes or exits.
  template <typename Function, typename... In>
  void call(const OpContext& context, const Arguments& arguments, Function* function,
            In... in) const {
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
    check(trouble == nullptr, "{} failed: {}", who, trouble == nullptr ? "" : trouble);
    if (on_device) wait_for_kernels_of(who, arguments.device());
    seconds_taken +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
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

// The output of a call, which shows what was written of it.
class WatchedOutput {
 public:
  explicit WatchedOutput(const TensorView& out) : output_(out) {}
  const DLTensor* as_argument(Arguments& arguments) const {
    return arguments(output_.view(), GuardedOutput::kGuardBytes);
  }
  void take(const std::string& who) { output_.take(who); }

 private:
  GuardedOutput output_;
};

// The cache of kv_write, which is written where it is: what lies beside a slot is another
// request's.
class CacheOutput {
 public:
  explicit CacheOutput(const KvCache& cache) : cache_(cache) {}
  const LockstepCache* as_argument(Arguments& arguments) const { return arguments(cache_); }
  void take(const std::string&) const {}

 private:
  KvCache cache_;
};

template <typename Out>
using OutputOf = std::conditional_t<std::is_same_v<Out, KvCache>, CacheOutput, WatchedOutput>;

// Puts a function of the library in the place of an op.
template <typename Out, typename... In>
void put(std::function<void(const OpContext&, Out, In...)>& op, const UserOp& user, void* symbol) {
  const auto function = reinterpret_cast<FunctionOf<Out, In...>*>(symbol);
  op = [user, function](const OpContext& context, const Out& out, const std::decay_t<In>&... in) {
    if constexpr (std::is_same_v<Out, TensorView>)
      if (out.count() == 0) return;
    InputGuard inputs;
    (inputs.add(in), ...);
    Arguments arguments;
    OutputOf<Out> output(out);
    std::apply(
        [&](auto... in_c) {
          user.call(context, arguments, function, output.as_argument(arguments), in_c...);
        },
        std::tuple_cat(arguments.in_c(in)...));
    inputs.check_unchanged(user.at(context), user.inputs);
    output.take(user.at(context));
  };
}

constexpr std::string_view kPrefix = "lockstep_";
std::string symbol_of(std::string_view op) { return fmt::format("{}{}", kPrefix, op); }

// Without those that there are not.
std::vector<std::string_view> names_of(std::span<const std::string_view> inputs) {
  std::vector<std::string_view> names;
  std::ranges::copy_if(inputs, std::back_inserter(names),
                       [](std::string_view name) { return !name.empty(); });
  return names;
}

// The library of that path, which stays open until the process ends.
void* opened(const std::string& path) {
  // The loader looks for a name without one in folders of its own.
  check(path.find('/') != path.npos,
        "--ops wants the path of a shared library, found {0} without a slash, which is looked for "
        "nowhere: write ./{0} for that of this folder",
        shown(path));
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  check(library != nullptr,
        "--ops wants a shared library of ops, found {} which cannot be opened: {}", shown(path),
        library == nullptr ? dlerror() : "");
  const auto abi =
      reinterpret_cast<decltype(lockstep_ops_abi)*>(dlsym(library, "lockstep_ops_abi"));
  check(abi != nullptr,
        "--ops wants a library that exports lockstep_ops_abi, found none in {}: include "
        "kernels/lockstep_ops.h and export the functions as C",
        path);
  check(abi() == LOCKSTEP_OPS_ABI,
        "--ops wants a library of interface {}, found {} in {}: compile it against this "
        "kernels/lockstep_ops.h",
        static_cast<int>(LOCKSTEP_OPS_ABI), abi(), path);
  return library;
}

// A misspelt op would leave the engine's own in its place, and a clean verdict on that.
void check_exports(void* library, const std::string& path) {
  std::vector<std::string_view> known;
  for_each_op([&](const auto& row) { known.push_back(row.name); });
  for (const std::string& symbol : exports_of(library)) {
    if (!symbol.starts_with(kPrefix) || symbol == "lockstep_ops_abi") continue;
    const std::string_view name = std::string_view(symbol).substr(kPrefix.size());
    check(std::ranges::find(known, name) != known.end(),
          "{} exports {}, which is no op{} (kernels/lockstep_ops.h names them; a function that is "
          "none needs another name, or to be static)",
          path, symbol, did_you_mean(name, known));
  }
}

ReplacedOps replaced_by(Ops ops, const std::function<void*(const char*)>& find,
                        const std::string& path) {
  ReplacedOps replaced = {std::move(ops), {}};
  for_each_op([&](const auto& row) {
    void* symbol = find(symbol_of(row.name).c_str());
    if (symbol == nullptr) return;
    put(replaced.ops.*row.entry, {row.name, path, library_around(symbol), names_of(row.inputs)},
        symbol);
    replaced.names.emplace_back(row.name);
  });
  check(!replaced.names.empty(),
        "--ops wants a library that exports an op, such as lockstep_rms_norm, found none in {}: "
        "kernels/lockstep_ops.h names them",
        path);
  return replaced;
}

}  // namespace

ReplacedOps replace_ops(Ops ops, const std::string& path, Device device) {
  std::error_code ignored;  // what cannot be looked at is not there either
  const auto kind = std::filesystem::status(path, ignored).type();
  check(
      kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found,
      "--ops wants a shared library or a Python file of ops, found {}, which is no regular file",
      shown(path));
  if (path.ends_with(".py")) return with_python_ops(std::move(ops), path, device);
  void* library = opened(path);
  check_exports(library, path);
  return replaced_by(
      std::move(ops), [library](const char* symbol) { return dlsym(library, symbol); }, path);
}

double user_op_seconds() { return seconds_taken; }
void forget_user_op_seconds() { seconds_taken = 0; }

Ops with_user_ops(Ops ops, const std::string& path) {
  return replace_ops(std::move(ops), path, Device::cpu).ops;
}

Ops with_user_functions(Ops ops, const std::function<void*(const char*)>& find,
                        const std::string& library) {
  return replaced_by(std::move(ops), find, library).ops;
}

}  // namespace lockstep
