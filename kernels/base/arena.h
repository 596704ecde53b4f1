// Memory of a device is dear to ask for, and asking waits for the device. The arena makes each
// shape of a pass pay for it once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

namespace lockstep {

// An arena of memory: it keeps what is released, by size, for later requests of about that size. It
// owns what the source gave, and several threads may use it.
class Arena {
 public:
  // Where an arena has its memory from.
  struct Source {
    std::function<void*(int64_t bytes)> allocate;  // null when there is not that much left
    std::function<void(void* memory)> release;
  };

  using BySize = std::multimap<int64_t, void*>;  // by bytes

  explicit Arena(Source source) : source_(std::move(source)) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Memory that was released, if it is that large and no more than an eighth larger: so passes of
  // nearly one length share memory, and little of it is wasted. Else new memory of the source; when
  // that has none left it first gets back all that is kept. Null when there is not enough.
  void* allocate(int64_t bytes);
  // Takes back memory that allocate gave. Nothing is given back to the source here, and nothing
  // waits for the device.
  void release(void* memory);
  int64_t kept() const;  // bytes that wait for who wants them

  // From the first call to the second, what the calling thread releases is handed out to it again,
  // but then belongs to whoever called: a graph writes there whenever it is replayed. take_back
  // ends that. What other threads release meanwhile no graph has seen. One thread at a time may do
  // so.
  void begin_apart();
  BySize end_apart();
  void take_back(const BySize& apart);

 private:
  bool keeps_apart() const { return apart_for_ == std::this_thread::get_id(); }
  static void* take(BySize& from, int64_t bytes);
  void give_back_all();

  Source source_;
  mutable std::mutex mutex_;
  BySize free_, apart_;
  std::thread::id apart_for_;                    // none: nobody
  std::unordered_map<void*, int64_t> bytes_of_;  // of everything that the source gave
};

}  // namespace lockstep
