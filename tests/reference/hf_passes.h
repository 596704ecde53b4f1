#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"
#include "probes/qwen_graph.h"
#include "tests/reference/passes.h"
#include "traces/trace.h"

namespace lockstep {

// Hugging Face's own activations of a bundled model in bf16, as a probe would have seen them: the
// prompt and the first decode step, as far as they are stored.
class HuggingFacePasses {
 public:
  explicit HuggingFacePasses(const std::string& model)
      : checkpoint_(Checkpoint::open(data_path(model))), golden_(model, "bfloat16/romeo") {}

  const Checkpoint& checkpoint() const { return checkpoint_; }
  Manifest manifest(const std::map<std::string, RoundingContract>& declared) const {
    return {.graph = graph_,
            .dtype = DType::bf16,
            .selection = "what is stored",
            .contracts = declared};
  }
  static std::map<std::string, RoundingContract> every(RoundingContract schema) {
    std::map<std::string, RoundingContract> all;
    for (const Point& p : kPoints) all[std::string(p.name)] = schema;
    return all;
  }
  // digests: as a trace needs them.
  std::vector<Pass> passes(bool digests) const {
    std::vector<Pass> passes;
    Recorder recorder({}, digests, [&](Pass pass) { passes.push_back(std::move(pass)); });
    Probe probe(&recorder);
    const std::vector<int32_t> prompt = golden_.ids("prompt_ids"),
                               chosen = golden_.ids("greedy_ids");
    const auto infos = prefill_and_decode(prompt, {chosen.at(0)});
    for (const PassInfo& info : infos) {
      probe.begin(info);
      for (const Place& place : graph_.places()) show(place, info.pass, probe);
      probe.end();
    }
    check(probe.failure().empty(), "{}", probe.failure());
    return passes;
  }

 private:
  void show(const Place& place, int step, Probe& probe) const {
    const Point& p = *place.point;
    if (p.is_cache()) return show_cache(place, step, probe);
    const auto found = golden_.find(step, p, place.layer);
    if (!found) return;
    const bool heads = p.name.starts_with("attn.") &&
                       (p.op == OpKind::linear || p.op == OpKind::attention) &&
                       p != point("attn.o");
    const int64_t rows = found->shape[0];
    const Tensor tensor = with_shape(
        *found,
        heads ? Shape{rows, found->row_size() / config_.head_dim, config_.head_dim} : found->shape);
    if (p == point("logits"))
      probe.logits(p, tensor);
    else
      probe(p, place.layer, tensor);
  }

  // What the golden's attention read: all that was written so far.
  void show_cache(const Place& place, int step, Probe& probe) const {
    std::vector<Row> rows;
    const int64_t row = config_.kv_heads * config_.head_dim;
    std::vector<char> bytes;
    for (int s = 0; s <= step; ++s) {
      const auto k = golden_.find(s, point("attn.k_rope"), place.layer);
      const auto v = golden_.find(s, point("attn.v"), place.layer);
      if (!k || !v) return;
      const auto size = static_cast<size_t>(row * size_of(k->dtype));
      for (int64_t i = 0; i < k->shape[0]; ++i) {
        for (const TensorView& half : {*k, *v}) {
          const auto* from = half.slice(i, 1).as<const char>();
          bytes.insert(bytes.end(), from, from + size);
        }
        rows.push_back({0, static_cast<int32_t>(rows.size())});
      }
    }
    Tensor tensor({std::ssize(rows), 2, config_.kv_heads, config_.head_dim}, DType::bf16);
    std::memcpy(tensor.as<char>(), bytes.data(), bytes.size());
    probe(*place.point, place.layer, rows, tensor);
  }

  static Tensor with_shape(const TensorView& from, const Shape& shape) {
    Tensor tensor(shape, from.dtype);
    std::memcpy(tensor.as<char>(), from.data, static_cast<size_t>(from.bytes()));
    return tensor;
  }

  Checkpoint checkpoint_;
  const ModelConfig& config_ = checkpoint_.config();
  Graph graph_ = qwen_graph({static_cast<int>(config_.layers), config_.qk_norm});
  Golden golden_;
};

}  // namespace lockstep
