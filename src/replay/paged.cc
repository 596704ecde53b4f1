// Pages for a pass that is computed again. The trace's own tables are used where it has them all,
// since a bug of paging shows only with these; else every request gets pages of its own, one after
// another.
#include "src/replay/paged.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"
#include "traces/run_facts.h"

namespace lockstep {
namespace {

constexpr int64_t kUsualPageSize = 16;
constexpr int64_t kMostPoolBytes = int64_t{4} << 30;
// The same where pages that no request of the pass has are a part of it.
constexpr int64_t kMostSparePoolBytes = int64_t{1} << 30;

int64_t pages_for(int64_t positions, int64_t page_size) {
  return (positions + page_size - 1) / page_size;
}

// Positions of each request up to its last one, in the order of the rows.
std::vector<std::pair<int32_t, int64_t>> lengths_of(const PassInfo& info) {
  std::vector<std::pair<int32_t, int64_t>> lengths;
  for (const PassRow& row : info.rows) {
    if (lengths.empty() || lengths.back().first != row.row.request)
      lengths.emplace_back(row.row.request, 0);
    lengths.back().second = row.row.position + 1;
  }
  return lengths;
}

bool knows_pages(const PassInfo& info, int64_t page_size) {
  if (page_size <= 0) return false;
  for (const auto& [request, length] : lengths_of(info)) {
    const auto table = std::ranges::find(info.pages, request, &RequestPages::request);
    if (table == info.pages.end() || std::ssize(table->pages) < pages_for(length, page_size))
      return false;
    if (std::ranges::any_of(table->pages, [](int32_t page) { return page < 0; })) return false;
  }
  return std::ranges::none_of(info.rows, [](const PassRow& row) { return row.slot < 0; });
}

void give_pages(PagedPass& pass) {
  pass.info.pages.clear();
  int32_t next = 0;
  std::map<int32_t, int32_t> first;
  for (const auto& [request, length] : lengths_of(pass.info)) {
    first[request] = next;
    RequestPages& table = pass.info.pages.emplace_back(RequestPages{request, {}});
    for (int64_t i = 0; i < pages_for(length, pass.page_size); ++i) table.pages.push_back(next++);
  }
  for (PassRow& row : pass.info.rows)
    row.slot = first[row.row.request] * pass.page_size + row.row.position;
  pass.pages = next;
}

// Only the tables of requests that have rows, in the order of those.
void order_tables(PassInfo& info) {
  std::vector<RequestPages> tables;
  for (const auto& [request, length] : lengths_of(info))
    tables.push_back(*std::ranges::find(info.pages, request, &RequestPages::request));
  info.pages = std::move(tables);
}

// Order and sharing of pages stay; only the gaps between their numbers go, which a pool of a large
// server is full of.
void number_anew(PagedPass& pass) {
  std::map<int64_t, int32_t> numbers;
  const auto number_of = [&](int64_t page) {
    return numbers.try_emplace(page, static_cast<int32_t>(numbers.size())).first->second;
  };
  for (RequestPages& table : pass.info.pages)
    for (int32_t& page : table.pages) page = number_of(page);
  for (PassRow& row : pass.info.rows)
    row.slot = number_of(row.slot / pass.page_size) * pass.page_size + row.slot % pass.page_size;
  pass.pages = std::ssize(numbers);
}

}  // namespace

PoolFacts pool_of(const Manifest& manifest) {
  const RunFacts facts = run_facts_of(manifest);
  return {facts.page_size, facts.pages};
}

PagedPass paged(PassInfo info, const PoolFacts& run, int64_t position_bytes) {
  const int64_t page_size = run.page_size;
  PagedPass pass{std::move(info), page_size, 0, ""};
  if (!knows_pages(pass.info, page_size)) {
    pass.page_size = page_size > 0 ? page_size : kUsualPageSize;
    give_pages(pass);
    pass.unlike_run = "pages and slots are numbered anew, one after the other";
    return pass;
  }
  order_tables(pass.info);
  for (const RequestPages& table : pass.info.pages)
    for (const int32_t page : table.pages) pass.pages = std::max<int64_t>(pass.pages, page + 1);
  for (const PassRow& row : pass.info.rows)
    pass.pages = std::max(pass.pages, row.slot / page_size + 1);
  const int64_t page_bytes = std::max<int64_t>(1, page_size * position_bytes);
  if (pass.pages > kMostPoolBytes / page_bytes) {
    number_anew(pass);
    pass.unlike_run = "pages are numbered anew without gaps, as so large a pool is not made again";
  } else if (run.pages == 0) {
    pass.unlike_run =
        fmt::format("the pool has {} pages, as it is not known how many it had", pass.pages);
  } else if (run.pages > kMostSparePoolBytes / page_bytes && run.pages > pass.pages) {
    pass.unlike_run = fmt::format("the pool has {} pages and not {}", pass.pages, run.pages);
  } else {
    pass.pages = std::max(pass.pages, run.pages);
  }
  return pass;
}

HostCache filled_cache(const PagedPass& pass, const std::map<int32_t, KeysValues>& held,
                       const std::vector<PassRow>& left_out) {
  check(!held.empty(), "a cache was to be filled, and nothing is known of it");
  const TensorView& like = held.begin()->second.k;
  const Shape shape = {pass.pages, pass.page_size, like.shape[1], like.shape[2]};
  HostCache cache{Tensor(shape, like.dtype), Tensor(shape, like.dtype)};
  const size_t bytes = like.row_size() * size_of(like.dtype);
  // A kernel that reads past a context then makes NaN, which no budget passes.
  for (const Tensor* half : {&cache.k, &cache.v})
    std::memset(half->as<char>(), 0xFF, static_cast<size_t>(half->view().bytes()));
  for (const RequestPages& table : pass.info.pages) {
    const auto found = held.find(table.request);
    if (found == held.end()) continue;
    const auto& [k, v] = found->second;
    for (int64_t p = 0; p < k.rows(); ++p) {
      const auto own = [&](const PassRow& row) {
        return row.row.request == table.request && row.row.position == p;
      };
      if (std::ranges::any_of(left_out, own)) continue;
      const size_t page = p / pass.page_size;
      if (page >= table.pages.size()) break;
      const auto slot =
          static_cast<size_t>(table.pages[page] * pass.page_size + p % pass.page_size);
      const auto from = static_cast<size_t>(p) * bytes;
      std::memcpy(cache.k.as<char>() + slot * bytes, k.as<const char>() + from, bytes);
      std::memcpy(cache.v.as<char>() + slot * bytes, v.as<const char>() + from, bytes);
    }
  }
  return cache;
}

}  // namespace lockstep
