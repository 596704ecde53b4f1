#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.h"

namespace lockstep {

// One token to be drawn from a row of logits on a device, as `probabilities` and `pick` of
// src/engine/sampler.h do on the CPU: penalty, temperature, top_k, top_p, min_p, in fp64. Sums of
// probabilities are counted in units of 2^-44 of the largest one, so that their order is no matter:
// a draw is the same every time, and another one than the CPU's where that lies within 1e-8 of the
// border between two tokens.
struct DeviceDraw {
  int64_t row = 0;                       // of the logits
  int64_t text_begin = 0, text_end = 0;  // of its tokens, which the penalty is for
  int64_t top_k = 0;                     // 0: all
  double temperature = 0, top_p = 1, min_p = 0, penalty = 1;
  double uniform = 0;  // in [0, 1)
};

// out[i] = the token of draws[i]. All but the logits is on the host; queued after all that the
// device has to do, and done on return.
//   logits  [rows, vocab], fp32, fp16 or bf16, on the device; vocab at most 2^18
using DeviceSampler = void(std::span<int32_t> out, const TensorView& logits,
                           std::span<const DeviceDraw> draws, std::span<const int32_t> text);

}  // namespace lockstep
