#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep {

// Which pages of the K/V cache are free. A page is the same index in every layer's cache. Pages
// that were freed last are handed out first, so that reuse happens early and often.
class PagePool {
 public:
  // order: 0 hands out 0, 1, 2 ...; another seed shuffles the pages, so that neighbouring positions
  // do not lie in neighbouring pages.
  PagePool(int64_t pages, uint64_t order);

  int64_t pages() const { return pages_; }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }

  // Sets pages aside for a request, to be taken one by one. False, and nothing changed, when not
  // that many are left.
  bool reserve(int64_t pages);
  // Gives back what was reserved and not taken.
  void release(int64_t pages);

  int32_t take();                               // of the reserved ones; throws Error when none is
  void give_back(std::vector<int32_t>& pages);  // and empties the vector

 private:
  int64_t pages_;
  int64_t reserved_ = 0;
  std::vector<int32_t> free_;  // the last one goes first
};

}  // namespace lockstep
