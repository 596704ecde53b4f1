// Free pages are a stack, published ones that nobody holds a list in the order of their last use. A
// page is found again by its key and then compared token by token: a hash that two prefixes share
// must not give one the other's keys.
#include "src/engine/page_pool.h"

#include <algorithm>
#include <limits>
#include <random>

#include "kernels/base/check.h"
#include "probes/digest.h"

namespace lockstep {

uint64_t PagePool::prefix_key(uint64_t parent, std::span<const int32_t> tokens) {
  const uint64_t link[] = {parent, hash_of(tokens.data(), tokens.size_bytes())};
  return hash_of(link, sizeof(link));
}

PagePool::PagePool(int64_t pages, uint64_t order) {
  check(pages >= 1 && pages <= std::numeric_limits<int32_t>::max(),
        "a pool has 1 to 2147483647 pages, found {}: change --pages", pages);
  pages_.resize(pages);
  for (int64_t page = pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
  if (order == 0) return;
  // Not std::shuffle, whose order differs between standard libraries.
  std::mt19937_64 random(order);
  for (size_t i = free_.size(); i > 1; --i) std::swap(free_[i - 1], free_[random() % i]);
}

const PagePool::Page& PagePool::at(int32_t page) const {
  check(page >= 0 && page < pages(), "there is no page {}; the pool has pages 0..{}", page,
        pages() - 1);
  return pages_[page];
}

PagePool::Page& PagePool::at(int32_t page) {
  return const_cast<Page&>(std::as_const(*this).at(page));
}

void PagePool::forget(Page& page) {
  published_.erase(*page.key);
  page.key.reset();
  page.tokens.clear();
}

int32_t PagePool::take() {
  check(available() > 0, "all {} pages are in use", pages());
  int32_t page = 0;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    page = unused_.front();
    unused_.pop_front();
    forget(at(page));
  }
  at(page).holders = 1;
  return page;
}

void PagePool::share(int32_t page) {
  check(at(page).holders > 0, "page {} cannot be shared, because nobody holds it", page);
  ++at(page).holders;
}

void PagePool::give_back(int32_t index) {
  Page& page = at(index);
  check(page.holders > 0, "page {} was given back, but nobody holds it", index);
  if (--page.holders > 0) return;
  if (page.key)
    page.waiting = unused_.insert(unused_.end(), index);
  else
    free_.push_back(index);
}

void PagePool::publish(int32_t index, uint64_t parent, std::span<const int32_t> tokens) {
  Page& page = at(index);
  check(page.holders > 0, "page {} cannot be published, because nobody holds it", index);
  if (page.key) return;
  const uint64_t key = prefix_key(parent, tokens);
  // Two requests that computed the same prefix at once keep a page each; later ones find the first.
  if (!published_.try_emplace(key, index).second) return;
  page.key = key;
  page.parent = parent;
  page.tokens.assign(tokens.begin(), tokens.end());
}

std::optional<int32_t> PagePool::find(uint64_t parent, std::span<const int32_t> tokens) {
  const auto found = published_.find(prefix_key(parent, tokens));
  if (found == published_.end()) return {};
  Page& page = at(found->second);
  if (page.parent != parent || !std::ranges::equal(page.tokens, tokens)) return {};
  if (page.holders++ == 0) unused_.erase(page.waiting);
  return found->second;
}

}  // namespace lockstep
