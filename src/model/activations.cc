#include "src/model/activations.h"

namespace lockstep {
namespace {

constexpr int64_t kLine = 64;  // bytes, to a multiple of which every copy of a buffer is aligned

Shape with_rows(int64_t rows, const Shape& row) {
  return row.rank() == 2   ? Shape{rows, row[0], row[1]}
         : row.rank() == 1 ? Shape{rows, row[0]}
                           : Shape{rows};
}

}  // namespace

Activations::Activations(const ModelConfig& config, DType dtype, Device device, Lifetime lifetime)
    : config_(config), dtype_(dtype), device_(device), lifetime_(lifetime) {}

void Activations::fit(std::initializer_list<Buffer> buffers, int64_t rows, int64_t& capacity,
                      std::vector<Held>& storage) {
  const bool grows = rows > capacity || storage.empty();
  if (grows) {
    storage.clear();
    capacity = rows;
  }
  size_t i = 0;
  for (const Buffer& buffer : buffers) {
    const int64_t in_pass = buffer.halves == 0 ? 1 : (2 * config_.layers + 1) / buffer.halves;
    const int64_t in_layer = buffer.view == &stream ? 2 : 1;  // it is added to from half to half
    const int64_t copies = lifetime_ == Lifetime::layer ? in_layer : in_pass;
    const TensorView one{nullptr, buffer.dtype, device_, with_rows(capacity, buffer.row)};
    const int64_t stride = (one.bytes() + kLine - 1) / kLine * kLine;
    if (grows) storage.push_back({Tensor({copies * stride}, DType::u8, device_)});
    Held& held = storage[i++];
    held.buffer = buffer;
    held.copies.clear();
    for (int64_t copy = 0; copy < copies; ++copy)
      held.copies.push_back(
          held.block.part(copy * stride, with_rows(rows, buffer.row), buffer.dtype).view());
    *buffer.view = held.copies[0];
  }
}

TensorView Activations::next_half() {
  const TensorView before = stream;
  for (const Held& held : storage_) {
    if (lifetime_ == Lifetime::layer) {
      // What a half makes takes the place of what the last one made.
      *held.buffer.view = held.copies[static_cast<size_t>(half_ + 1) % held.copies.size()];
      continue;
    }
    // What a half makes goes where no other half's is; the first stream is embed's.
    const int64_t at = (half_ + (held.buffer.view == &stream ? 1 : 0)) / held.buffer.halves;
    if (at < std::ssize(held.copies)) *held.buffer.view = held.copies[static_cast<size_t>(at)];
  }
  ++half_;
  return before;
}

void Activations::resize(int64_t tokens, int64_t logit_rows) {
  half_ = 0;
  const ModelConfig& c = config_;
  const Shape hidden = {c.hidden}, heads = {c.heads, c.head_dim}, kv = {c.kv_heads, c.head_dim};
  const Shape inner = {c.intermediate}, chosen = {c.experts.chosen};
  const Shape expert_inner = {c.experts.chosen, c.experts.intermediate};
  fit({{&stream, hidden, dtype_, 1},
       {&norm, hidden, dtype_, 1},
       {&q, heads, dtype_, 2},
       {&q_norm, heads, dtype_, 2},
       {&q_rope, heads, dtype_, 2},
       {&k, kv, dtype_, 2},
       {&k_norm, kv, dtype_, 2},
       {&k_rope, kv, dtype_, 2},
       {&v, kv, dtype_, 2},
       {&attention, heads, dtype_, 2},
       {&branch, hidden, dtype_, 1},
       {&gate, inner, dtype_, 2},
       {&up, inner, dtype_, 2},
       {&act, inner, dtype_, 2},
       {&router, {c.experts.count}, dtype_, 2},
       {&experts, chosen, DType::i32, 2},
       {&weights, chosen, dtype_, 2},
       {&expert_gate, expert_inner, dtype_, 2},
       {&expert_up, expert_inner, dtype_, 2},
       {&expert_act, expert_inner, dtype_, 2},
       {&expert_down, {c.experts.chosen, c.hidden}, dtype_, 2}},
      tokens, capacity_, storage_);
  fit({{&last, hidden, dtype_, 0}, {&logits, {c.vocab}, dtype_, 0}, {&token, {}, DType::i32, 0}},
      logit_rows, logit_capacity_, logit_storage_);
}

}  // namespace lockstep
