#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/dtype.h"

struct CUstream_st;

namespace lockstep {

// What is kept of every tensor, in one pass over its bytes. Numbers are of the finite elements, in
// fp64; counts are of all elements. Made on the CPU by probes/digest.h, on a device by
// DigestMaker: hash, counts, extremes and exponents are then the same to the bit.
struct Digest {
  uint64_t hash = 0;  // xxh3-64 of the bytes in logical order
  int64_t count = 0;
  int64_t nan = 0, pos_inf = 0, neg_inf = 0;
  int64_t zeros = 0, subnormals = 0;
  double min = 0, max = 0;  // 0 when nothing is finite
  double absmax = 0;
  int64_t absmax_index = -1;  // first element with that magnitude; -1: nothing finite
  double mean = 0, m2 = 0;    // Welford: m2 = sum (x - mean)^2
  double sum_abs = 0, sum_squares = 0;
  std::array<uint32_t, 256> exponents{};  // of fp32-like exponents: bin = clamp(e + 127, 0, 255)

  int64_t finite() const { return count - nan - pos_inf - neg_inf; }
  // sqrt(sum_squares / finite elements), 0 when there is none
  double rms() const {
    return finite() > 0 ? std::sqrt(sum_squares / static_cast<double>(finite())) : 0;
  }
};

// Digests that are wanted of tensors in the memory of a CUDA device: of one with dense rows, or,
// of a K/V cache, of what the attention of each request reads, [positions, k|v, row]. Every
// pointer is of the device. How many rows there are is known there alone: so that a graph can do
// the same job for passes of any length, `rows` is read when it is done.
struct DigestJob {
  DType dtype = DType::f32;
  const void* data = nullptr;     // rows of row_bytes; of a cache, its pool of K
  const void* values = nullptr;   // its pool of V; null: dense
  int64_t row_bytes = 0;          // of a cache: of K, and of V, of one position
  const int32_t* rows = nullptr;  // of each request; a dense tensor is one request's
  int64_t requests = 1;
  int64_t most_rows = 0;  // what there is room for: what `rows` says beyond that is left out
  // Of a cache: its page tables [requests, width], as AttentionBatch has them, and its pages. A
  // page that the pool lacks reads as bytes of 255, NaN; the attention itself reports it.
  const int32_t* table = nullptr;
  int64_t width = 0, page_size = 1, pages = 0;

  Digest* out = nullptr;  // one a request
  // xxh3-64 of each row. Of a cache the rows of all requests follow each other without gaps, and
  // those of `order` other caches of the same requests come first.
  uint64_t* row_hashes = nullptr;
  int64_t order = 0;
};

// What makes digests on a device, from the library of CUDA ops.
struct DigestMaker {
  static constexpr int kMostJobs = 128;  // of one call

  // Queues one launch for up to kMostJobs jobs, which works in `scratch`, scratch_bytes(jobs) of
  // the device's memory. Sums are made in an order that depends on the rows alone.
  void (*digest)(std::span<const DigestJob> jobs, void* scratch, CUstream_st* stream) = nullptr;
  int64_t (*scratch_bytes)(std::span<const DigestJob> jobs) = nullptr;

  // Streams beside that of the ops: what takes long is not to hold up what does not. And the order
  // of two streams: what is queued on `later` from now on is done after what `earlier` has queued
  // so far. Can be kept in a graph.
  CUstream_st* aside = nullptr;
  CUstream_st* long_aside = nullptr;
  void (*order)(CUstream_st* later, CUstream_st* earlier) = nullptr;
  // For the host: the point that a stream's work has reached when all that it has queued so far is
  // done. `await` waits for that and forgets the point.
  void* (*mark)(CUstream_st* stream) = nullptr;
  void (*await)(void* mark) = nullptr;
};

// What the library of CUDA ops exports, of the device that it was opened for. Throws Error when it
// was not.
extern "C" [[gnu::visibility("default")]] const DigestMaker* lockstep_cuda_digests();

// Where the host keeps that. Throws Error when nothing was set.
void set_digest_maker(const DigestMaker& maker);
const DigestMaker& digest_maker();

}  // namespace lockstep
