#pragma once

#include <vector>

#include "kernels/base/memory.h"
#include "kernels/paged_attention.h"
#include "probes/record.h"
#include "src/weights/rope_tables.h"

namespace lockstep {

// The arguments of one forward pass: what PassInfo says, as the ops take it. On the CPU as
// make_batch() leaves it; DeviceBatch has one whose tensors are on a device. The tensors are its
// own, but cos and sin, which are the tables'.
struct Batch {
  PassInfo info;
  Tensor tokens;                                   // [tokens]  int32
  Tensor positions;                                // [tokens]  int32, rows of the RoPE tables
  Tensor slots;                                    // [tokens]  int64
  Tensor logit_rows;                               // [rows that get logits]  int32
  Tensor query_start, context_length, page_table;  // as AttentionBatch
  // The numbers of tokens and of rows of logits without padding, for a batch on a device, whose
  // tensors may be padded.
  Tensor counts;  // [2]  int32
  // Words of a batch on a device that are zero when the pass begins, for a launch that says in them
  // how far it is.
  static constexpr int64_t kCounters = 256;
  Tensor counters;      // [kCounters]  int32
  TensorView cos, sin;  // [entries, head_dim / 2]  fp32

  // Whether every request of the pass adds one token and chooses the next.
  bool decodes() const;
  int64_t size() const { return tokens.view().count(); }
  AttentionBatch attention() const { return {query_start, context_length, page_table}; }
};

// The rotary tables of a model, grown as positions are needed. Types whose frequencies depend on
// the request's length get a table for the one pass, with a row per token. fp32, made on the host
// by rope_frequencies(). One thread at a time may use it.
class RopeCache {
 public:
  // device: where on_device() has them.
  explicit RopeCache(const ModelConfig& config, Device device = Device::cpu)
      : config_(config), device_(device) {}
  // Fills batch.cos, batch.sin and batch.positions from batch.info; the tables stay valid until the
  // next call.
  void prepare(Batch& batch);

  struct Tables {
    TensorView cos, sin;
  };
  // batch.cos and batch.sin in the memory of the device, valid until the next call. They stay where
  // they are from call to call until they have to grow, and are written there on `stream` (null:
  // that of the device's ops), which is to be behind the pass that read them last.
  Tables on_device(const Batch& batch, CUstream_st* stream = nullptr);

 private:
  void grow(int64_t entries);
  void put_row(const RopeFrequencies& frequencies, int64_t position, int64_t row);

  const ModelConfig& config_;
  Device device_;
  Tensor cos_, sin_;
  int64_t filled_ = 0;              // rows that hold their own position
  Tensor device_cos_, device_sin_;  // copies on the device,
  bool changed_ = true;             // if not, up to date
  Tensor other_cos_, other_sin_;    // of tables that somebody put in the place of these
};

// The arguments for `info`, whose pages are in the order of the requests' rows. Throws Error of a
// pass without rows, or with another number of page tables than requests.
Batch make_batch(PassInfo info, RopeCache& tables);

}  // namespace lockstep
