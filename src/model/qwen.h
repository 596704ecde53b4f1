#pragma once

#include "src/model/model.h"

namespace lockstep {

// Qwen2, Qwen2.5 and Qwen3: pre-norm transformer with grouped-query attention, rotary positions and
// SwiGLU. Qwen2 has biases on q, k, v; Qwen3 norms q and k per head instead; Qwen3-MoE has experts
// in place of the MLP: each token goes to the few that a router chooses for it.
Forward qwen_forward(const Model& model, const Batch& batch, const std::vector<KvCache>& caches,
                     Activations& activations, Probe& probe);

}  // namespace lockstep
