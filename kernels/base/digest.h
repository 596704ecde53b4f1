#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

#include "kernels/base/dtype.h"

struct CUstream_st;

namespace lockstep {

// The statistics that are kept of every tensor, made in one pass over its bytes. Numbers are of the
// finite elements, in fp64; counts are of all elements. Made on the CPU by probes/digest.h, on a
// device by DigestMaker: hash, counts, extremes and exponents are then the same to the bit. A
// digest of hashes alone, as one of a K/V cache is, has no numbers: its counts but `count` are -1
// then, its fp64 NaN.
struct Digest {
  // xxh3-64 of the bytes in logical order; of hashes alone, of the row hashes: 8 bytes each, little
  // endian, in order.
  uint64_t hash = 0;
  int64_t count = 0;
  int64_t nan = 0, pos_inf = 0, neg_inf = 0;
  int64_t zeros = 0, subnormals = 0;
  double min = 0, max = 0;  // 0 when nothing is finite
  double absmax = 0;
  int64_t absmax_index = -1;  // first element with that magnitude; -1: nothing finite
  double mean = 0, m2 = 0;    // Welford: m2 = sum (x - mean)^2
  double sum_abs = 0, sum_squares = 0;
  std::array<uint32_t, 256> exponents{};  // of fp32-like exponents: bin = clamp(e + 127, 0, 255)

  bool has_numbers() const { return nan >= 0; }
  int64_t finite() const { return has_numbers() ? count - nan - pos_inf - neg_inf : -1; }
  // sqrt(sum_squares / finite elements), 0 when there is none
  double rms() const {
    if (!has_numbers()) return std::numeric_limits<double>::quiet_NaN();
    return finite() > 0 ? std::sqrt(sum_squares / static_cast<double>(finite())) : 0;
  }
};

// When a tensor is there that a launch makes which goes on meanwhile: once a word of the device's
// memory, which it raises, is at least `least`. Null: it is there.
struct Ready {
  const uint32_t* words = nullptr;
  uint32_t least = 0;
  int64_t columns = 0;  // of a row, that each of several words tells of; 0: one tells of all
};

// A digest that is wanted of a tensor with dense rows in the memory of a CUDA device. Every pointer
// is of the device. How many rows there are is known there alone: so that a graph can do the same
// job for passes of any length, `rows` is read when it is done.
struct DigestJob {
  DType dtype = DType::f32;
  const void* data = nullptr;
  int64_t row_bytes = 0;
  const int32_t* rows = nullptr;
  int64_t most_rows = 0;  // what there is room for: what `rows` says beyond that is left out
  Ready ready;            // of DigestMaker::meanwhile alone

  Digest* out = nullptr;
  uint64_t* row_hashes = nullptr;  // xxh3-64 of each row; null: not wanted
};

// Row hashes that are wanted of what the attention of each request reads of a K/V cache,
// [positions, k|v, row]; pointers and rows are as DigestJob has them.
struct CacheJob {
  const void* k = nullptr;  // pools
  const void* v = nullptr;
  int64_t row_bytes = 0;  // of K, and of V, of one position
  const int32_t* rows = nullptr;
  int64_t requests = 0;
  int64_t most_rows = 0;  // of a request
  // Page tables [requests, width], as AttentionBatch has them, and pages of a pool. A page that the
  // pool lacks reads as bytes of 255, NaN; the attention itself reports it.
  const int32_t* table = nullptr;
  int64_t width = 0, page_size = 1, pages = 0;

  int64_t* hashed = nullptr;  // how many rows, of each request
  // The hashes of all requests follow each other without gaps, after those of `cache_index` other
  // caches of the same requests.
  uint64_t* row_hashes = nullptr;
  int64_t cache_index = 0;
  Ready ready;
};

// The bytes that a launch takes which makes digests while another one makes the tensors.
struct MeanwhileRoom {
  int64_t scratch = 0, list = 0;
};

// The part of a device's runtime that makes digests there.
struct DigestMaker {
  static constexpr int kMostJobs = 128;  // of one call

  // Queues one launch for up to kMostJobs jobs, which works in `scratch`, scratch_bytes(jobs) of
  // the device's memory. Sums are made in an order that depends on the rows alone.
  std::function<void(std::span<const DigestJob> jobs, void* scratch, CUstream_st* stream)> digest;
  std::function<int64_t(std::span<const DigestJob> jobs)> scratch_bytes;
  // The same of caches, which needs no scratch.
  std::function<void(std::span<const CacheJob> jobs, CUstream_st* stream)> hash_caches;

  // Queues one launch for jobs of any number whose tensors are made meanwhile by a decode step, in
  // the order in which it makes them, on multiprocessors that the step leaves free. `scratch` is
  // the device's memory, and `list` pinned memory of the host that must stay as it is left until
  // the launch, or the graph that it is captured in, is gone: meanwhile_room(jobs) of both.
  std::function<void(std::span<const DigestJob> jobs, void* scratch, void* list,
                     CUstream_st* stream)>
      meanwhile;
  std::function<MeanwhileRoom(std::span<const DigestJob> jobs)> meanwhile_room;

  // Streams beside that of the ops, so that long work does not hold up short work: caches have
  // their own. stream_wait makes what is queued on `later` from now on wait for what `earlier` has
  // queued so far; it can be captured in a graph.
  CUstream_st* digest_stream = nullptr;
  CUstream_st* cache_digest_stream = nullptr;
  std::function<void(CUstream_st* later, CUstream_st* earlier)> stream_wait;
  // For copies to the host by another thread than the one that computes: no graph captures it, and
  // it waits for no other stream.
  CUstream_st* download_stream = nullptr;
  // The tensors of a pass can be had while digests of them are still being made: mark_ops says
  // that `ops` has queued all ops of a pass, at each replay anew where a graph captures it, and
  // follow_ops makes `later` wait for those of the last pass. The host has a stream for that, and
  // passes that are replayed have two, so that one is computed beside the digests of the last one.
  CUstream_st* result_stream = nullptr;
  std::array<CUstream_st*, 2> pass_streams = {};
  std::function<void(CUstream_st* ops)> mark_ops;
  std::function<void(CUstream_st* later)> follow_ops;
  // The same as stream_wait, of the last decode step that was launched with words to raise: until
  // all of it has begun, after which nothing can keep it from being done.
  std::function<void(CUstream_st* later)> wait_begun;
  // An event that a stream reaches when all that it has queued so far is done. wait_event waits for
  // it, in any thread, and destroys it.
  std::function<void*(CUstream_st* stream)> record_event;
  std::function<void(void* event)> wait_event;
};

}  // namespace lockstep
