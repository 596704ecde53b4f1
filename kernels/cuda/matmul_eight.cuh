#pragma once

#include <span>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"
#include "kernels/fused.h"

namespace lockstep {

// Whether all of these products, three at most, are of 2 to 8 tokens, of 16-bit numbers, and of
// rows that tensor cores can take as they lie: k a multiple of 32, all of it aligned to 16 bytes.
// Then they can be one launch, and their bits are those that each has in a launch of its own; an
// element depends on its row of x and its row of weight alone.
bool matmul_fits_eight(std::span<const Linear> all, const TensorView& x);

// matmul for such arguments that were checked: reads the weights once.
void matmul_eight_cuda(const OpContext& context, std::span<const Linear> all, const TensorView& x);

// out = silu_mul(gate, up) of two such products of one size, whose own out may be empty.
void gate_up_silu_eight_cuda(const OpContext& context, const TensorView& out, const Linear& gate,
                             const Linear& up, const TensorView& x);

}  // namespace lockstep
