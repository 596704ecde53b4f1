// Bugs of who holds which page. What is planned and what the pool counts stay in step, as in an
// engine whose own checks do not notice: only K and V are wrong.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "src/faults/seeds.h"

namespace lockstep {
namespace {

// A shared prefix was found for it, and not by a fork, which never looks for one.
bool found_prefix(const Sequence& s) {
  return s.starts_with_cached_prefix && s.id == s.root_request && !s.keys.empty();
}

// Puts `page`, which somebody holds, in place of the page at that index of the sequence's table.
void replace_page(Sequence& sequence, size_t index, int32_t page, PagePool& pool) {
  pool.share(page);
  pool.give_back(std::exchange(sequence.pages[index], page));
}

void seed_stale_prefix_page(const Seams& seams, const FaultRequest&) {
  // Page 0 of a prefix is looked for by its tokens: those of an older prompt find the wrong one.
  using Tokens = std::vector<int32_t>;
  const auto older = std::make_shared<std::set<Tokens>>();
  add_to(seams.hooks.after_plan, [older](Plan& plan, PagePool& pool) {
    for (const Plan::Chunk& chunk : plan.chunks) {
      Sequence& s = *chunk.sequence;
      if (!found_prefix(s)) continue;
      const auto size = s.computed / std::ssize(s.keys);  // of a page
      const Tokens right(s.tokens.begin(), s.tokens.begin() + size);
      for (const Tokens& tokens : *older) {
        if (std::ssize(tokens) < size || std::equal(right.begin(), right.end(), tokens.begin()))
          continue;
        const auto stale = pool.find(0, std::span(tokens).first(size));
        if (!stale) continue;
        pool.give_back(std::exchange(s.pages[0], *stale));
        break;
      }
    }
    for (const Plan::Chunk& chunk : plan.chunks) older->insert(chunk.sequence->request.prompt);
  });
}

// The victim still reads the page, which another request fills: what the pool counts is made to
// agree, so that its own checks stay silent.
void seed_page_freed_too_early(const Seams& seams, const FaultRequest&) {
  const auto freed = std::make_shared<std::set<int32_t>>();  // requests that lost a page
  add_to(seams.hooks.after_plan, [freed](Plan& plan, PagePool& pool) {
    const auto lives = [&](const Plan::Chunk& chunk) {
      return chunk.sequence->computed > 0 && !freed->contains(chunk.sequence->id);
    };
    const auto victim = std::ranges::find_if(plan.chunks, lives);
    if (victim == plan.chunks.end()) return;
    for (const Plan::Chunk& chunk : plan.chunks) {
      if (chunk.sequence == victim->sequence) continue;
      std::vector<int32_t>& pages = chunk.sequence->pages;
      const auto handed = std::ranges::find_first_of(pages, plan.fresh);
      if (handed == pages.end()) continue;
      const int32_t page = victim->sequence->pages[0];
      std::ranges::replace(plan.fresh, *handed, page);
      replace_page(*chunk.sequence, handed - pages.begin(), page, pool);
      freed->insert(victim->sequence->id);
      return;
    }
  });
}

void seed_written_while_shared(const Seams& seams, const FaultRequest&) {
  add_to(seams.hooks.after_plan, [](Plan& plan, PagePool& pool) {
    for (const Plan::Copy& copy : plan.copies)
      for (const Plan::Chunk& chunk : plan.chunks) {
        std::vector<int32_t>& pages = chunk.sequence->pages;
        const auto own = std::ranges::find(pages, copy.to);
        if (own == pages.end()) continue;
        replace_page(*chunk.sequence, own - pages.begin(), copy.from, pool);
      }
    plan.copies.clear();
  });
}

void seed_swap_restores_another_page(const Seams& seams, const FaultRequest&) {
  add_to(seams.hooks.after_plan, [](Plan& plan, PagePool&) {
    for (Plan::Swap& swap : plan.in)
      if (!swap.pages.empty())
        std::rotate(swap.pages.begin(), swap.pages.begin() + 1, swap.pages.end());
  });
}

constexpr Fault kServingRows[] = {
    {"stale-prefix-page",
     "attn.kv",
     "the first page found for a prefix is one that holds an older request's tokens",
     "a prefix cache that is hit after another prompt of a page or more",
     {},
     always,
     seed_stale_prefix_page,
     false},
    {"page-freed-too-early",
     "attn.kv",
     "the first page of a request that still runs is handed to another one",
     "a request that needs a new page while another one runs",
     {},
     always,
     seed_page_freed_too_early,
     false},
    {"written-while-shared",
     "attn.kv",
     "a shared page is written without making a copy first",
     "samples of one prompt that part inside a page",
     {},
     always,
     seed_written_while_shared,
     false},
    {"swap-restores-another-page",
     "attn.kv",
     "pages that come back from host memory are each filled with what the page before held",
     "a request of two pages or more that is preempted by swap",
     {},
     always,
     seed_swap_restores_another_page,
     false},
};

}  // namespace

constinit const std::span<const Fault> kServingFaults = kServingRows;

}  // namespace lockstep
