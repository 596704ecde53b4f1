// A call of a user's function in the place of an op, step by step: inputs are remembered
// (InputGuard), the output is memory of our own that is filled with a pattern and has guard bytes
// around it (GuardedOutput), arguments become DLPack tensors (Arguments), a crash is watched for
// (CrashWatch), and afterwards inputs, guards, pattern and the thread's floating-point control are
// looked at. So a wrong kernel ends in a sentence about itself, and not in a wrong verdict about
// another op.
#include "kernels/plugin/user_ops.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/ending.h"
#include "kernels/base/nearest.h"
#include "kernels/base/printable.h"
#include "kernels/lockstep_ops.h"
#include "kernels/plugin/crash_watch.h"
#include "kernels/plugin/exports.h"
#include "kernels/plugin/foreign_call.h"
#include "kernels/plugin/fused_entries.h"
#include "kernels/plugin/python_ops.h"

namespace lockstep {
namespace {

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

// Puts a function of the library in the place of an op.
template <typename Out, typename... In>
void put(std::function<void(const OpContext&, Out, In...)>& op, const UserOp& user, void* symbol) {
  const auto function = reinterpret_cast<FunctionOf<Out, In...>*>(symbol);
  op = [user, function](const OpContext& context, const Out& out, const std::decay_t<In>&... in) {
    if constexpr (std::is_same_v<Out, TensorView>)
      if (out.count() == 0) return;
    ForeignCall call(user, context);
    const auto output = call.output(out);
    // Braces evaluate from left to right.
    const std::tuple<decltype(call.input(in))...> all{call.input(in)...};
    std::apply(
        [&](const auto&... each) {
          std::apply([&](auto... in_c) { call.run(function, output, in_c...); },
                     std::tuple_cat(each...));
        },
        all);
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

// The loader crashes on a library that was cut, and runs what the library has run at its start.
void* loaded(const std::string& path) {
  const std::string loading = fmt::format("loading {}", shown(path));
  const CrashScene scene("before any op of it was called (its file may be cut)");
  const CrashWatch watch(loading, {}, {});
  keep_ends();
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

// The library of that path, which stays open until the process ends.
void* opened(const std::string& path) {
  // The loader looks for a name without one in folders of its own.
  check(path.find('/') != path.npos,
        "--ops wants the path of a shared library, found {0} without a slash, which is looked for "
        "nowhere: write ./{0} for that of this folder",
        shown(path));
  void* library = loaded(path);
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
  for (const FusedRow& row : kFusedOps) known.push_back(row.name);
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
  for (const FusedRow& row : kFusedOps) {
    void* symbol = find(symbol_of(row.name).c_str());
    if (symbol == nullptr) continue;
    put_fused(replaced.ops.fused, row, {row.name, path, library_around(symbol), {}}, symbol);
    replaced.names.emplace_back(row.name);
  }
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

Ops with_user_ops(Ops ops, const std::string& path) {
  return replace_ops(std::move(ops), path, Device::cpu).ops;
}

Ops with_user_functions(Ops ops, const std::function<void*(const char*)>& find,
                        const std::string& library) {
  return replaced_by(std::move(ops), find, library).ops;
}

}  // namespace lockstep
