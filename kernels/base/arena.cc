// Blocks are kept by size in a multimap and handed out when a want is at most an eighth smaller, so
// that passes of nearly one length share memory. While a graph is captured, what the capturing
// thread releases stays apart: the graph writes there whenever it is replayed.
#include "kernels/base/arena.h"

namespace lockstep {

// The smallest that fits, unless more than an eighth of it would lie idle.
void* Arena::take(BySize& from, int64_t bytes) {
  const auto found = from.lower_bound(bytes);
  if (found == from.end() || found->first > bytes + bytes / 8) return nullptr;
  void* memory = found->second;
  from.erase(found);
  return memory;
}

// Memory of other sizes is given back before the device is said to be full.
void* Arena::allocate(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (keeps_apart())
    if (void* found = take(apart_, bytes)) return found;
  if (void* found = take(free_, bytes)) return found;
  void* memory = source_.allocate(bytes);
  if (memory == nullptr && !free_.empty()) {
    give_back_all();
    memory = source_.allocate(bytes);
  }
  if (memory != nullptr) bytes_of_[memory] = bytes;
  return memory;
}

// An address that allocate() did not give is a bug of the caller, which at() throws of.
void Arena::release(void* memory) {
  const std::lock_guard lock(mutex_);
  (keeps_apart() ? apart_ : free_).emplace(bytes_of_.at(memory), memory);
}

int64_t Arena::kept() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const auto& [bytes, memory] : free_) sum += bytes;
  return sum;
}

void Arena::begin_apart() {
  const std::lock_guard lock(mutex_);
  apart_for_ = std::this_thread::get_id();
}

Arena::BySize Arena::end_apart() {
  const std::lock_guard lock(mutex_);
  apart_for_ = {};
  return std::exchange(apart_, {});
}

void Arena::take_back(const BySize& apart) {
  const std::lock_guard lock(mutex_);
  free_.insert(apart.begin(), apart.end());
}

void Arena::give_back_all() {
  while (!free_.empty()) {
    void* memory = free_.begin()->second;
    free_.erase(free_.begin());
    bytes_of_.erase(memory);
    source_.release(memory);
  }
}

}  // namespace lockstep
