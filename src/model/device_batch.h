#pragma once

#include <compare>
#include <utility>

#include "src/model/batch.h"

namespace lockstep {

// A batch in the memory of a device: one block, which one copy fills, and which stays where it is.
// Owned by one pass or one graph. It may have room for more than a pass has: padded tokens belong
// to requests without a context, so that they read no key, write nowhere and change nothing of the
// others.
class DeviceBatch {
 public:
  struct Room {
    int64_t tokens = 0, requests = 0, logit_rows = 0;
    int64_t pages = 0;  // width of the page tables
    auto operator<=>(const Room&) const = default;
  };
  // The room that a batch takes.
  static Room room_of(const Batch& batch);

  DeviceBatch(const Room& room, Device device);

  // Throws Error when the batch takes more than there is room for. The copy is queued on `stream`
  // (null: that of the device's ops), and the host's block is free for the next call when it
  // returns. `tokens`, on the device, are taken in the place of the batch's, unless there are none.
  void fill(Batch batch, RopeCache& tables, const TensorView& tokens = {},
            CUstream_st* stream = nullptr);

  // The batch that it was filled with last. Its `info` is without the padding.
  const Batch& batch() const { return device_; }
  // Where it was filled before all of that was known.
  void set_info(PassInfo info) { device_.info = std::move(info); }

 private:
  void copy_there(const TensorView& tokens, CUstream_st* stream);

  Room room_;
  Tensor host_block_, device_block_;
  Batch host_, device_;  // parts of the blocks
};

}  // namespace lockstep
