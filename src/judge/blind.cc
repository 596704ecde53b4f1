#include "src/judge/blind.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {

void RunFacts::add(const Pass& pass) {
  std::map<int32_t, int> queries;
  std::map<int32_t, int32_t> first;
  for (const PassRow& r : pass.info.rows) {
    int32_t& length = lengths_[r.row.request];
    length = std::max(length, r.row.position + 1);
    ++queries[r.row.request];
    first.try_emplace(r.row.request, r.row.position);
    decodes_ = decodes_ || r.phase == Phase::decode;
  }
  for (const auto& [request, count] : queries)
    chunked_ = chunked_ || (count > 1 && first[request] > 0);
  most_requests_ = std::max(most_requests_, queries.size());
  for (const RequestPages& pages : pass.info.pages) {
    slots_known_ = true;
    most_pages_ = std::max(most_pages_, pages.pages.size());
    for (size_t i = 1; i < pages.pages.size(); ++i)
      scattered_ = scattered_ || pages.pages[i] != pages.pages[i - 1] + 1;
  }
  for (const KeptTensor& tensor : pass.tensors) {
    if (tensor.shape.rank() != 3) continue;
    if (*tensor.point == point("attn.q_rope")) heads_ = tensor.shape[1];
    if (*tensor.point == point("attn.k_rope")) kv_heads_ = tensor.shape[1];
  }
}

std::vector<std::string> RunFacts::blind_to() const {
  std::vector<std::string> blind;
  const auto say = [&](bool is_blind, std::string text) {
    if (is_blind) blind.push_back(std::move(text));
  };
  int32_t longest = 0;
  std::set<int32_t> different;
  for (const auto& [request, length] : lengths_) {
    longest = std::max(longest, length);
    different.insert(length);
  }
  say(longest <= 1, "query, key, RoPE and mask bugs (position 0 sees itself alone)");
  say(longest > 1 && longest <= 256,
      fmt::format("positions rounded to 16 bits (none is past 255; the last is {})", longest - 1));
  say(slots_known_ && most_pages_ < 3,
      fmt::format("page-table bugs beyond a page or two (no request has 3 pages; most: {})",
                  most_pages_));
  say(slots_known_ && most_pages_ > 1 && !scattered_,
      "page tables that are ignored (all pages lie in order)");
  say(most_requests_ < 2, "one request's data used for another (no pass has two requests)");
  say(most_requests_ >= 2 && different.size() < 2,
      "one request's length used for another (all are equally long)");
  say(!decodes_, "bugs of decoding (prefill only)");
  say(!chunked_,
      "causal masks aligned at the wrong end (no pass has several queries over a longer "
      "cache)");
  say(heads_ > 0 && (heads_ == kv_heads_ || kv_heads_ == 1),
      fmt::format("the map from heads to K/V heads ({} heads, {} K/V heads)", heads_, kv_heads_));
  return blind;
}

}  // namespace lockstep
