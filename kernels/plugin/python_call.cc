// A call of a Python function as words and memory: the words say of each argument what it is and
// where it lies in the memory that both processes have. Inputs are compared afterwards, because a
// function that writes to one would falsify what later ops are judged by.
#include "kernels/plugin/python_call.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr int64_t kAlignment = 64;  // of a tensor in the memory

}  // namespace

std::string who_is_called(std::string_view op, const PythonProcess& process,
                          const OpContext& context) {
  const std::string layer = context.layer < 0 ? "" : fmt::format("layer {} ", context.layer);
  return fmt::format("{} of {} at {}{}", op, process.path(), layer, context.point);
}

void PythonCall::add(const TensorView& tensor) {
  if (tensor.empty()) return say("none");
  inputs_.push_back({tensor, place(tensor.bytes())});
  say("tensor", tensor, inputs_.back().at);
}

void PythonCall::add(const KvCache& cache) {
  say("cache");
  add(cache.k), add(cache.v);
}

void PythonCall::add(const AttentionBatch& batch) {
  say("batch");
  add(batch.query_start), add(batch.context_length), add(batch.page_table);
}

void PythonCall::add(const std::vector<TensorView>& tensors) {
  say(fmt::format("list:{}", tensors.size()));
  for (const TensorView& tensor : tensors) add(tensor);
}

void PythonCall::add(float x) { say(fmt::format("float:{}", static_cast<double>(x))); }

void PythonCall::add(int64_t x) { say(fmt::format("int:{}", x)); }

void PythonCall::add_output(const GuardedOutput& output) {
  outputs_.push_back({output.whole(), place(output.whole().view().bytes())});
  say("out", output.view(), outputs_.back().at + GuardedOutput::kGuardBytes);
}

void PythonCall::add_output(const KvCache& cache) {
  say("cache");
  for (const TensorView& half : {cache.k, cache.v}) {
    outputs_.push_back({half, place(half.bytes())});
    say("tensor", half, outputs_.back().at);
  }
}

void PythonCall::run(PythonProcess& process, const std::string& who, std::string_view op,
                     const std::vector<std::string_view>& names) const {
  // One call at a time has the memory.
  const std::lock_guard lock(process.mutex());
  const std::span<uint8_t> memory = process.memory(size_);
  // Outputs go there too, with the pattern of a GuardedOutput or the cache as it is.
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

int64_t PythonCall::place(int64_t bytes) {
  const int64_t at = size_;
  size_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

void PythonCall::say(std::string_view kind, const TensorView& tensor, int64_t at) {
  say(fmt::format("{}:{}/{}/{}", kind, name_of(tensor.dtype), at,
                  fmt::join(tensor.shape.extents(), ",")));
}

}  // namespace lockstep
