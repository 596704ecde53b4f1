#pragma once

#include <string_view>

struct CUstream_st;  // cudaStream_t, without its header

namespace lockstep {

class ThreadPool;

// Where an op runs, and which op of the model it is. Ops never read `layer` and `point`: they are
// for the tables of ops that wrap another one (a user's kernel, a seeded fault, a substitution).
// Borrowed by the op for the length of its call.
struct OpContext {
  ThreadPool* threads = nullptr;  // CPU workers; null: the calling thread alone
  CUstream_st* stream = nullptr;  // CUDA stream
  int layer = -1;                 // -1: not of a layer
  std::string_view point;         // the point that shows the op's output, e.g. "attn.q"
};

}  // namespace lockstep
