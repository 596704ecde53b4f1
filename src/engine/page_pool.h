#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace lockstep {

// The pool of K/V pages, with the count of holders of each. A page is the same index in every
// layer's cache. Owned by the engine, used by its thread.
//   free       nobody holds it and its content means nothing
//   held       by one request or more; with two or more holders it must not be written
//   published  full, and found by later requests with the same prefix; when nobody holds it any
//              more it waits, and is taken again, the least recently used first, once no free one
//              is left
// Pages that were freed last are handed out first, so that reuse happens early and often. It knows
// no tensors: what moves between pages is the plan's to say and the engine's to do.
class PagePool {
 public:
  // Names a full page by what it holds: the tokens of the page and, through `parent`, all tokens
  // before it. 0 is the parent of a first page.
  static uint64_t prefix_key(uint64_t parent, std::span<const int32_t> tokens);

  // order: 0 hands out 0, 1, 2 ...; another seed shuffles the pages, so that neighbouring positions
  // do not lie in neighbouring pages.
  PagePool(int64_t pages, uint64_t order);

  int64_t pages() const { return std::ssize(pages_); }
  // Pages that take() can still give.
  int64_t available() const { return std::ssize(free_) + std::ssize(unused_); }
  int64_t free_pages() const { return std::ssize(free_); }  // those in which nobody finds anything
  int holders(int32_t page) const { return at(page).holders; }
  bool published(int32_t page) const { return at(page).key.has_value(); }

  // A page for one holder, to be written by it. Throws Error when none is available.
  int32_t take();
  void share(int32_t page);      // one more holder; throws Error when nobody holds it
  void give_back(int32_t page);  // one holder less

  // Lets others find a full page. A prefix that is published already stays with the page it has.
  void publish(int32_t page, uint64_t parent, std::span<const int32_t> tokens);
  // The page of that prefix, with one holder more; nothing when there is none.
  std::optional<int32_t> find(uint64_t parent, std::span<const int32_t> tokens);

 private:
  struct Page {
    int holders = 0;
    std::optional<uint64_t> key;  // under which it is published
    uint64_t parent = 0;
    std::vector<int32_t> tokens;           // what the key stands for: keys can collide
    std::list<int32_t>::iterator waiting;  // place in unused_ while published and held by nobody
  };
  const Page& at(int32_t page) const;
  Page& at(int32_t page);
  void forget(Page& page);

  std::vector<Page> pages_;
  std::vector<int32_t> free_;  // the last one goes first
  std::list<int32_t> unused_;  // published, held by nobody; the least recently used first
  std::unordered_map<uint64_t, int32_t> published_;
};

}  // namespace lockstep
