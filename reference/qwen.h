#pragma once

#include <memory>

#include "reference/reference.h"

namespace lockstep {

// Qwen2, Qwen2.5 and Qwen3 around LibTorch's scaled_dot_product_attention. Every point is rounded
// once, to `compute`, from a value computed in fp32 (fp64 when `compute` is): schema `fused`.
std::unique_ptr<ReferenceModel> qwen_reference(const Checkpoint& checkpoint,
                                               const ReferenceOptions& options, DType compute);

}  // namespace lockstep
