// Ops whose every element is made of a few others, in fp64 with all that their budgets need.
#pragma once

#include "reference/angle_tables.h"
#include "reference/rounding.h"
#include "src/judge/oracle.h"

namespace lockstep {

// Exact::want alone, left where it was computed: the numbers are shared with `want` where that is
// in host memory.
Exact exact_of(const at::Tensor& want, RoundingContract contract);
// Whether inner values are rounded where modules of Hugging Face store them.
bool rounds_as_hf(RoundingContract contract);

// All tensors are fp64 and on one device; grid: of the run.
//
// x: [rows, heads, head_dim]; cos, sin and error: [rows, head_dim / 2].
Exact exact_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                 const at::Tensor& error, RoundingContract contract, const Grid& grid);
Exact exact_silu_mul(const at::Tensor& gate, const at::Tensor& up, RoundingContract contract,
                     const Grid& grid);
// x: [.., width]; weight: [width].
Exact exact_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                 RoundingContract contract, const Grid& grid);

}  // namespace lockstep
