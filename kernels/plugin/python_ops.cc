// Ops whose implementations are Python functions: each entry of the table copies its arguments into
// shared memory, asks the process for the function by name, and copies the result back. Slow, and
// meant for kernels that are wrapped in Python (Triton, CUDA by torch), whose results are what
// counts.
#include "kernels/plugin/python_ops.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "kernels/plugin/guarded_output.h"
#include "kernels/plugin/host_staging.h"
#include "kernels/plugin/python_call.h"
#include "kernels/plugin/python_fused.h"
#include "kernels/plugin/python_process.h"

namespace lockstep {
namespace {

// The cache of kv_write, whose bytes are all copied back.
class WrittenCache {
 public:
  explicit WrittenCache(const KvCache& cache) : cache_(cache) {}
  operator const KvCache&() const { return cache_; }
  void take(const std::string&) const {}

 private:
  KvCache cache_;
};

// Puts a function of the process in the place of an op on the host.
template <typename Out, typename... In>
void put(std::function<void(const OpContext&, Out, In...)>& op, std::string_view name,
         std::vector<std::string_view> inputs, const std::shared_ptr<PythonProcess>& process) {
  // Places that a row of the table has left over are empty.
  std::erase(inputs, "");
  op = [=](const OpContext& context, const Out& out, const std::decay_t<In>&... in) {
    if constexpr (std::is_same_v<Out, TensorView>)
      if (out.count() == 0) return;
    const std::string who = who_is_called(name, *process, context);
    std::conditional_t<std::is_same_v<Out, KvCache>, WrittenCache, GuardedOutput> output(out);
    PythonCall call;
    call.add_output(output);
    (call.add(in), ...);
    call.run(*process, who, name, inputs);
    output.take(who);
  };
}

// A misspelt op would leave the engine's own in its place, and a clean verdict on that. Helpers may
// have names of their own, so that a beginning of an op's name is not enough.
void check_functions(const PythonProcess& process) {
  std::vector<std::string_view> known;
  for_each_op([&](const auto& row) { known.push_back(row.name); });
  for (const FusedRow& row : kFusedOps) known.push_back(row.name);
  for (const std::string& function : process.functions()) {
    if (std::ranges::find(known, function) != known.end()) continue;
    const std::string_view near = nearest(function, known);
    check(
        near.empty() || near.starts_with(function),
        "{} has a function {}, which is no op; did you mean \"{}\"? (kernels/lockstep_ops.h names "
        "them; a helper needs another name, or a leading _)",
        process.path(), function, near);
  }
}

}  // namespace

ReplacedOps with_python_ops(Ops ops, const std::string& path, Device device) {
  const auto process = std::make_shared<PythonProcess>(path, device);
  check_functions(*process);
  ReplacedOps replaced;
  Ops python;
  const auto has = [&](std::string_view name) {
    return std::ranges::find(process->functions(), name) != process->functions().end();
  };
  for_each_op([&](const auto& row) {
    if (!has(row.name)) return;
    put(python.*row.entry, row.name, {row.inputs.begin(), row.inputs.end()}, process);
    replaced.names.emplace_back(row.name);
  });
  for (const FusedRow& row : kFusedOps) {
    if (!has(row.name)) continue;
    check(device == Device::cpu,
          "--ops: {} of {} is a fused op, and those of a Python file are called on the CPU alone: "
          "leave out --device, or it",
          row.name, path);
    put_python_fused(ops.fused, row, process);
    replaced.names.emplace_back(row.name);
  }
  check(!replaced.names.empty(),
        "--ops wants a Python file with a function that is named as an op, such as rms_norm, found "
        "none in {}: kernels/lockstep_ops.h names them",
        path);
  process->ask(path, fmt::format("use {}", fmt::join(replaced.names, " ")));
  if (device != Device::cpu) python = staged_on(python, Device::cpu);
  for_each_op([&](const auto& row) {
    if (std::ranges::find(replaced.names, row.name) != replaced.names.end())
      ops.*row.entry = python.*row.entry;
  });
  replaced.ops = std::move(ops);
  return replaced;
}

}  // namespace lockstep
