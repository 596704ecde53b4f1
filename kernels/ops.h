// The table of ops: the seam between the model and the arithmetic.
//
// The model calls every op through a `const Ops&`. `cpu_ops()` is the default table; a user's
// kernel, a seeded fault and a substitution are each a copy of a table in which one entry wraps the
// entry that was there.
//
// Every op but matmul and expert_matmul is batch-invariant: a row's bits depend on its own inputs
// alone, not on the rest of the pass. `lockstep run --modes` holds them to it (src/judge/lineup.h).
//
// To add an op: write its contract in kernels/<op>.h, its checks and CPU code in kernels/<op>.cc,
// its CUDA twin in kernels/<op>.cu, name it in kernels/CMakeLists.txt, and add a row here, in
// ops.cc, in cuda_ops.h, in cuda_ops.cu, in carried.cc (host code around a device's op) and in
// user_ops.cc, with its declaration in lockstep_ops.h (a user's kernel in its place).
// An op that joins several goes into fused.h, its pieces in fused.cc. tests/kernels/<op>_test.cc is
// its test, cuda_<op>_test.cc that of its twin. What it makes is shown at a point: probes/points.h.
#pragma once

#include <functional>

#include "kernels/add.h"
#include "kernels/argmax.h"
#include "kernels/experts.h"
#include "kernels/fused.h"
#include "kernels/gather_rows.h"
#include "kernels/kv_cache.h"
#include "kernels/matmul.h"
#include "kernels/paged_attention.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/routing.h"
#include "kernels/silu_mul.h"

namespace lockstep {

struct Ops {
  std::function<decltype(lockstep::gather_rows)> gather_rows;
  std::function<decltype(lockstep::rms_norm)> rms_norm;
  std::function<decltype(lockstep::matmul)> matmul;
  std::function<decltype(lockstep::rope)> rope;
  std::function<decltype(lockstep::kv_write)> kv_write;
  std::function<decltype(lockstep::kv_gather)> kv_gather;
  std::function<decltype(lockstep::paged_attention)> paged_attention;
  std::function<decltype(lockstep::silu_mul)> silu_mul;
  std::function<decltype(lockstep::add)> add;
  std::function<decltype(lockstep::argmax)> argmax;
  std::function<decltype(lockstep::top_k)> top_k;
  std::function<decltype(lockstep::softmax_of)> softmax_of;
  std::function<decltype(lockstep::expert_matmul)> expert_matmul;
  std::function<decltype(lockstep::weighted_sum)> weighted_sum;
  FusedOps fused;  // made of those above
};

Ops cpu_ops();

}  // namespace lockstep
