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
#include "kernels/files/shared_file.h"

namespace lockstep {

// Writes tensors into files beside whoever hands them over, by threads of its own: large ones in
// pieces, several at a time, of as many files, or of one file that gains by it. The bytes that are
// not yet written are bounded, and whoever hands over more waits. Any thread may call.
class WriteBehind {
 public:
  // Bytes of tensors that were handed over and are not written yet; one tensor may be more.
  static constexpr int64_t kMostBytes = int64_t{512} << 20;

  // The writes into one file; what they share is guarded by the mutex of their WriteBehind.
  class Writes {
   public:
    explicit Writes(std::shared_ptr<const SharedFile> file) : file_(std::move(file)) {}

   private:
    friend class WriteBehind;
    std::shared_ptr<const SharedFile> file_;
    int64_t pieces_ = 0;   // that are queued or being written
    int64_t writing_ = 0;  // of these, being written
    std::string failure_;  // of a write; empty: none
  };

  // threads: that write, made when the first tensor is handed over; 0: as many as the machine has
  // use for.
  explicit WriteBehind(int threads = 0, int64_t most_bytes = kMostBytes);
  ~WriteBehind();  // all writes were waited for or dropped before
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // The tensor shares its memory, which nobody may change until it is written. Throws Error when a
  // write into this file has failed.
  void put(const std::shared_ptr<Writes>& into, int64_t offset, const Tensor& tensor);
  // Returns when all that was put there is written. Throws Error when a write failed.
  void wait(Writes& of);
  // Gives up what is not written yet; returns when nobody writes there any more.
  void drop(Writes& of);

 private:
  struct Piece {
    std::shared_ptr<Writes> into;
    Tensor tensor;  // which keeps the memory
    const char* from = nullptr;
    int64_t bytes = 0, at = 0;
  };
  void serve();
  std::deque<Piece>::iterator next_piece();

  int threads_;
  int64_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;  // guarded, as all below
  int64_t bytes_ = 0;         // of pieces that are not written
  bool ends_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lockstep
