// Ops whose implementations are Python functions: each entry of the table copies its arguments into
// shared memory, asks the process for the function by name, and copies the result back. Slow, and
// meant for kernels that are wrapped in Python (Triton, CUDA by torch), whose results are what
// counts.
#include "kernels/plugin/python_ops.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "kernels/plugin/guarded_output.h"
#include "kernels/plugin/host_staging.h"
#include "kernels/plugin/python_process.h"

namespace lockstep {
namespace {

constexpr int64_t kAlignment = 64;  // of a tensor in the memory

// The line of one call, and where its tensors, which are in host memory, lie in the shared one.
class Call {
 public:
  void add(const TensorView& tensor) {
    if (tensor.empty()) return say("none");
    inputs_.push_back({tensor, place(tensor.bytes())});
    say("tensor", tensor, inputs_.back().at);
  }
  void add(const WeightView& weight) { add(plain_codes("--ops", weight)); }
  void add(const KvCache& cache) {
    say("cache");
    add(cache.k), add(cache.v);
  }
  void add(const AttentionBatch& batch) {
    say("batch");
    add(batch.query_start), add(batch.context_length), add(batch.page_table);
  }
  void add(const std::vector<TensorView>& tensors) {
    say(fmt::format("list:{}", tensors.size()));
    for (const TensorView& tensor : tensors) add(tensor);
  }
  void add(float x) { say(fmt::format("float:{}", static_cast<double>(x))); }
  void add(int64_t x) { say(fmt::format("int:{}", x)); }
  void add(bool x) { say(x ? "bool:1" : "bool:0"); }

  // Comes first, as in C++.
  void add_output(const GuardedOutput& output) {
    outputs_.push_back({output.whole(), place(output.whole().view().bytes())});
    say("out", output.view(), outputs_.back().at + GuardedOutput::kGuardBytes);
  }
  // A cache is written where it is.
  void add_output(const KvCache& cache) {
    say("cache");
    for (const TensorView& half : {cache.k, cache.v}) {
      outputs_.push_back({half, place(half.bytes())});
      say("tensor", half, outputs_.back().at);
    }
  }

  void run(PythonProcess& process, const std::string& who, std::string_view op,
           const std::vector<std::string_view>& names) const {
    const std::lock_guard lock(process.mutex());
    const std::span<uint8_t> memory = process.memory(size_);
    for (const auto* all : {&inputs_, &outputs_})
      for (const auto& [tensor, at] : *all)
        std::memcpy(memory.data() + at, tensor.data, tensor.bytes());
    process.ask(who, fmt::format("call {} {}{}", op, memory.size(), words_));
    for (size_t i = 0; i < inputs_.size(); ++i)
      check(std::memcmp(memory.data() + inputs_[i].at, inputs_[i].tensor.data,
                        inputs_[i].tensor.bytes()) == 0,
            "{} changed its input {} {}: it may write its output alone, so work on a copy "
            "(x.clone())",
            who, names[std::min(i, names.size() - 1)], inputs_[i].tensor.shape.text());
    for (const auto& [tensor, at] : outputs_)
      std::memcpy(tensor.data, memory.data() + at, tensor.bytes());
  }

 private:
  struct Placed {
    TensorView tensor;
    int64_t at;  // bytes from the begin of the memory
  };

  int64_t place(int64_t bytes) {
    const int64_t at = size_;
    size_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  void say(std::string_view word) { words_.append(" ").append(word); }
  void say(std::string_view kind, const TensorView& tensor, int64_t at) {
    say(fmt::format("{}:{}/{}/{}", kind, name_of(tensor.dtype), at,
                    fmt::join(tensor.shape.extents(), ",")));
  }

  std::string words_;
  std::vector<Placed> inputs_, outputs_;
  int64_t size_ = 0;
};

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
  std::erase(inputs, "");
  op = [=](const OpContext& context, const Out& out, const std::decay_t<In>&... in) {
    if constexpr (std::is_same_v<Out, TensorView>)
      if (out.count() == 0) return;
    const std::string layer = context.layer < 0 ? "" : fmt::format("layer {} ", context.layer);
    const std::string who =
        fmt::format("{} of {} at {}{}", name, process->path(), layer, context.point);
    std::conditional_t<std::is_same_v<Out, KvCache>, WrittenCache, GuardedOutput> output(out);
    Call call;
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
  for_each_op([&](const auto& row) {
    if (std::ranges::find(process->functions(), row.name) == process->functions().end()) return;
    put(python.*row.entry, row.name, {row.inputs.begin(), row.inputs.end()}, process);
    replaced.names.emplace_back(row.name);
  });
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
