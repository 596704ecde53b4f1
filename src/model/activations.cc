// Buffers of a pass, each a view into one block that grows and never shrinks. With Lifetime::layer
// a buffer is used again by the next half of a layer, but for the stream, which alternates between
// two; with Lifetime::pass each half has copies of its own, so that everything that was shown is
// still there when the pass ends.
#include "src/model/activations.h"

namespace lockstep {
namespace {

Shape with_rows(int64_t rows, const Shape& row) {
  return row.rank() == 2   ? Shape{rows, row[0], row[1]}
         : row.rank() == 1 ? Shape{rows, row[0]}
                           : Shape{rows};
}

// The bytes of a copy of a buffer.
int64_t bytes_of(const Shape& row, DType dtype, int64_t rows) {
  return aligned(rows * row.count() * size_of(dtype));
}

}  // namespace

Activations::Activations(const ModelConfig& config, DType dtype, Device device, Lifetime lifetime,
                         bool over_ranks)
    : config_(config),
      dtype_(dtype),
      device_(device),
      lifetime_(lifetime),
      over_ranks_(over_ranks) {}

int64_t Activations::copies_of(const Buffer& buffer) const {
  if (lifetime_ == Lifetime::pass)
    return buffer.halves == 0 ? 1 : (2 * config_.layers + 1) / buffer.halves;
  return buffer.view == &Activations::stream ? 2 : 1;  // it is added to from half to half
}

void Activations::fit(const std::vector<Buffer>& buffers, int64_t rows, int64_t& capacity,
                      std::vector<Held>& storage) {
  const bool grows = rows > capacity || storage.empty();
  if (grows) {
    storage.clear();
    capacity = rows;
  }
  size_t i = 0;
  for (const Buffer& buffer : buffers) {
    const int64_t copies = copies_of(buffer), stride = bytes_of(buffer.row, buffer.dtype, capacity);
    if (grows) storage.push_back({Tensor({copies * stride}, DType::u8, device_)});
    Held& held = storage[i++];
    held.buffer = buffer;
    held.copies.clear();
    for (int64_t copy = 0; copy < copies; ++copy)
      held.copies.push_back(
          held.block.part(copy * stride, with_rows(rows, buffer.row), buffer.dtype).view());
    this->*buffer.view = held.copies[0];
  }
}

int64_t Activations::memory(int64_t tokens, int64_t logit_rows) const {
  int64_t sum = 0;
  const auto add = [&](const std::vector<Buffer>& buffers, int64_t rows) {
    for (const Buffer& buffer : buffers)
      sum += memory_for(copies_of(buffer) * bytes_of(buffer.row, buffer.dtype, rows), device_);
  };
  add(of_tokens(), tokens);
  add(of_logit_rows(), logit_rows);
  return sum;
}

TensorView Activations::next_half() {
  const TensorView before = stream;
  for (const Held& held : storage_) {
    if (held.buffer.halves == 0) continue;
    if (lifetime_ == Lifetime::layer) {
      // The tensors of a half take the place of those of the last one.
      this->*held.buffer.view = held.copies[(half_ + 1) % held.copies.size()];
      continue;
    }
    // Each half has memory of its own; the first stream is embed's, and so is what is added to it.
    const auto view = held.buffer.view;
    const bool is_embed = view == &Activations::stream || view == &Activations::partial;
    const int64_t at = (half_ + (is_embed ? 1 : 0)) / held.buffer.halves;
    if (at < std::ssize(held.copies)) this->*held.buffer.view = held.copies[at];
  }
  ++half_;
  return before;
}

std::vector<Activations::Buffer> Activations::of_tokens() const {
  const ModelConfig& c = config_;
  const Shape hidden = {c.hidden}, heads = {c.heads, c.head_dim}, kv = {c.kv_heads, c.head_dim};
  const Shape inner = {c.intermediate}, chosen = {c.experts.chosen};
  const Shape expert_inner = {c.experts.chosen, c.experts.intermediate};
  using A = Activations;
  const Shape pairs = {c.head_dim / 2};
  std::vector<Buffer> buffers = {{&A::stream, hidden, dtype_, 1},
                                 {&A::rope_cos, pairs, DType::f32, 0},
                                 {&A::rope_sin, pairs, DType::f32, 0},
                                 {&A::norm, hidden, dtype_, 1},
                                 {&A::q, heads, dtype_, 2},
                                 {&A::q_norm, heads, dtype_, 2},
                                 {&A::q_rope, heads, dtype_, 2},
                                 {&A::k, kv, dtype_, 2},
                                 {&A::k_norm, kv, dtype_, 2},
                                 {&A::k_rope, kv, dtype_, 2},
                                 {&A::v, kv, dtype_, 2},
                                 {&A::attention, heads, dtype_, 2},
                                 {&A::branch, hidden, dtype_, 1},
                                 {&A::gate, inner, dtype_, 2},
                                 {&A::up, inner, dtype_, 2},
                                 {&A::act, inner, dtype_, 2},
                                 {&A::router, {c.experts.count}, dtype_, 2},
                                 {&A::experts, chosen, DType::i32, 2},
                                 {&A::weights, chosen, dtype_, 2},
                                 {&A::expert_gate, expert_inner, dtype_, 2},
                                 {&A::expert_up, expert_inner, dtype_, 2},
                                 {&A::expert_act, expert_inner, dtype_, 2},
                                 {&A::expert_down, {c.experts.chosen, c.hidden}, dtype_, 2}};
  if (over_ranks_ && lifetime_ == Lifetime::pass) {
    buffers.push_back({&A::partial, hidden, dtype_, 1});
    buffers.push_back({&A::expert_partial, {c.experts.chosen, c.hidden}, dtype_, 2});
  }
  return buffers;
}

std::vector<Activations::Buffer> Activations::of_logit_rows() const {
  return {{&Activations::last, {config_.hidden}, dtype_, 0},
          {&Activations::logits, {config_.vocab}, dtype_, 0},
          {&Activations::token, {}, DType::i32, 0}};
}

void Activations::resize(int64_t tokens, int64_t logit_rows) {
  half_ = 0;
  fit(of_tokens(), tokens, capacity_, storage_);
  fit(of_logit_rows(), logit_rows, logit_capacity_, logit_storage_);
}

}  // namespace lockstep
