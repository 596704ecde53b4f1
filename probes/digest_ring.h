#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "probes/download.h"
#include "probes/recorder.h"

namespace lockstep {

// Where a pass on a device leaves its digests, in one block of the device's memory: first a Digest
// for each tensor, of attn.kv how many rows were hashed of each request there is room for; then the
// row hashes of each tensor with its rows padded; last those of the caches, layer by layer, without
// gaps.
struct DigestLayout {
  struct Tap {
    const Point* point = nullptr;
    int layer = -1;
    TensorView tensor;   // where it lies, padded; of attn.kv, the pool of K
    int64_t digest = 0;  // in bytes, its Digest; of attn.kv, its int64 counts of rows
    int64_t hashes = 0;  // its row hashes, in bytes; of attn.kv, how many caches come before
    bool keeps = false;  // its numbers too
  };
  std::vector<Tap> taps;     // in execution order
  int64_t cache_hashes = 0;  // in bytes, where those of the caches begin
  int64_t caches = 0;
};

// The digests that a pass left: their layout, and the memory that it and its taps lie in.
struct DigestedPass {
  std::shared_ptr<const DigestLayout> layout;
  std::shared_ptr<const Tensor> digests;
  // Copies of buffers that are used again, and what the launches themselves work in.
  std::vector<std::shared_ptr<const Tensor>> tensors;
  PassInfo info;
  // Whether the kept tensors lie in `tensors`, where no later pass writes.
  bool owns_kept = false;
  // On which it is queued, and whatever writes to that memory next.
  CUstream_st* stream = nullptr;
};

// Brings what passes leave on a device to a taker on the host, on a stream beside that of the ops
// and in the order of the passes. The engine goes on meanwhile, until kSlots passes are on their
// way, or `most_bytes` of them: then it waits, and that is counted. reserve(), push() and flush()
// are for the engine's thread; failure() may be asked by any.
class DigestRing {
 public:
  // How often, and how long, an engine waited for those who take what it shows.
  struct Waits {
    int64_t passes = 0, waited = 0;
    double seconds = 0;
  };

  static constexpr size_t kSlots = 8;

  // The taker is borrowed, and called from a thread of the ring. Once it throws it is not called
  // again. What is on its way takes as much memory of the device as of the host; one pass alone may
  // be more than most_bytes.
  explicit DigestRing(DigestSink& taker, int64_t most_bytes = int64_t{2} << 30);
  ~DigestRing();  // when all is taken
  DigestRing(const DigestRing&) = delete;
  DigestRing& operator=(const DigestRing&) = delete;

  // Before the pass that is pushed next keeps that many bytes on the device: returns when there is
  // room for them and all that it has kept so far.
  void reserve(int64_t bytes);
  // After the pass was queued.
  void push(DigestedPass pass);
  // Returns when all that was pushed is taken.
  void flush();

  bool keeps(const Point& point, int layer) const { return taker_.keeps(point, layer); }
  Waits waits() const { return waits_; }
  std::string failure() const;         // of the taker; empty: none
  uint64_t id() const { return id_; }  // that no other ring has had

 private:
  struct Slot;
  using Lock = std::unique_lock<std::mutex>;
  template <typename Ready>
  void wait_until(Lock& lock, Ready ready);
  bool has_room(int64_t bytes) const {
    return on_the_way_ == 0 || on_the_way_ + bytes <= most_bytes_;
  }
  void make_room(Slot& slot, int64_t bytes) const;
  Download& download_from(Device device);
  void queue_copies(Slot& slot) const;
  void release(Slot& slot);
  void serve();

  DigestSink& taker_;
  int64_t most_bytes_;
  ThreadPool pool_;  // for passes of many requests, which would else wait for the host
  std::unique_ptr<Download> download_;  // the ring's thread's; null before a pass takes it
  uint64_t id_;
  Waits waits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::deque<Slot*> free_, queued_;  // guarded, as all below
  int64_t on_the_way_ = 0;           // bytes of the slots that are not free
  int64_t reserved_ = 0;             // bytes, for the next pass
  bool waited_ = false;              // for the next pass
  bool busy_ = false, ends_ = false;
  std::string failure_;
  std::thread thread_;
};

}  // namespace lockstep
