#include "src/model/activations.h"

namespace lockstep {

Activations::Activations(const ModelConfig& config, DType dtype, Device device)
    : config_(config), dtype_(dtype), device_(device) {}

void Activations::resize(int64_t tokens, int64_t logit_rows) {
  const ModelConfig& c = config_;
  struct Buffer {
    TensorView* view;
    Shape row;
    DType dtype;
  };
  const auto fit = [&](std::initializer_list<Buffer> buffers, int64_t rows, int64_t& capacity,
                       std::vector<Tensor>& storage) {
    const auto with_rows = [](int64_t n, const Shape& row) {
      return row.rank() == 2   ? Shape{n, row[0], row[1]}
             : row.rank() == 1 ? Shape{n, row[0]}
                               : Shape{n};
    };
    if (rows > capacity || storage.empty()) {
      storage.clear();
      for (const Buffer& b : buffers)
        storage.emplace_back(with_rows(rows, b.row), b.dtype, device_);
      capacity = rows;
    }
    size_t i = 0;
    for (const Buffer& b : buffers) *b.view = storage[i++].view().slice(0, rows);
  };
  const Shape hidden = {c.hidden}, heads = {c.heads, c.head_dim}, kv = {c.kv_heads, c.head_dim};
  const Shape inner = {c.intermediate}, chosen = {c.experts.chosen};
  const Shape expert_inner = {c.experts.chosen, c.experts.intermediate};
  fit({{&stream, hidden, dtype_},
       {&norm, hidden, dtype_},
       {&q, heads, dtype_},
       {&q_norm, heads, dtype_},
       {&q_rope, heads, dtype_},
       {&k, kv, dtype_},
       {&k_norm, kv, dtype_},
       {&k_rope, kv, dtype_},
       {&v, kv, dtype_},
       {&attention, heads, dtype_},
       {&branch, hidden, dtype_},
       {&gate, inner, dtype_},
       {&up, inner, dtype_},
       {&act, inner, dtype_},
       {&router, {c.experts.count}, dtype_},
       {&experts, chosen, DType::i32},
       {&weights, chosen, dtype_},
       {&expert_gate, expert_inner, dtype_},
       {&expert_up, expert_inner, dtype_},
       {&expert_act, expert_inner, dtype_},
       {&expert_down, {c.experts.chosen, c.hidden}, dtype_}},
      tokens, capacity_, storage_);
  fit({{&last, hidden, dtype_}, {&logits, {c.vocab}, dtype_}, {&token, {}, DType::i32}}, logit_rows,
      logit_capacity_, logit_storage_);
}

}  // namespace lockstep
