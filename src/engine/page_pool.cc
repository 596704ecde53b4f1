#include "src/engine/page_pool.h"

#include <limits>
#include <random>

#include "kernels/check.h"

namespace lockstep {

PagePool::PagePool(int64_t pages, uint64_t order) : pages_(pages) {
  check(pages >= 1 && pages <= std::numeric_limits<int32_t>::max(),
        "a pool of 1 to 2147483647 pages was wanted, found {}: change --pages", pages);
  for (int64_t page = pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
  if (order == 0) return;
  // Not std::shuffle, whose order differs between standard libraries.
  std::mt19937_64 random(order);
  for (size_t i = free_.size(); i > 1; --i) std::swap(free_[i - 1], free_[random() % i]);
}

bool PagePool::reserve(int64_t pages) {
  if (pages > free() - reserved_) return false;
  reserved_ += pages;
  return true;
}

void PagePool::release(int64_t pages) {
  check(pages <= reserved_, "{} reserved pages were given back, but only {} are reserved", pages,
        reserved_);
  reserved_ -= pages;
}

int32_t PagePool::take() {
  check(reserved_ > 0 && !free_.empty(), "a page was wanted, but none is reserved or free");
  --reserved_;
  const int32_t page = free_.back();
  free_.pop_back();
  return page;
}

void PagePool::give_back(std::vector<int32_t>& pages) {
  check(free() + static_cast<int64_t>(pages.size()) <= pages_,
        "{} pages were given back to a pool of {} with {} free", pages.size(), pages_, free());
  free_.insert(free_.end(), pages.rbegin(), pages.rend());
  pages.clear();
}

}  // namespace lockstep
