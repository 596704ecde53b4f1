// The occasions of a run: Bugs of paging, masks, chunks or routing need circumstances (a second
// page, a context past a window, two requests of different lengths); they are counted pass by pass,
// and not_covered() names each kind of bug that had none, with the option that would give it one. A
// verdict is worth what it was tried on.
#include "src/judge/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace lockstep {
namespace {

// Whether the elements of a head are multiplied by different gains: what a norm makes of its input
// is a gain each, times a factor that the row and head have in common. Two roundings of a chain of
// ops and one of the store may set equal gains this far apart.
bool gains_vary(const TensorView& before, const TensorView& after) {
  const double apart = 1 + 8 * unit_roundoff(after.dtype);
  const int64_t size = after.shape.last();
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (int64_t i = 0; i < size; ++i) {  // of the first head of the first row
    const double x = value_at(before, i), y = value_at(after, i);
    if (x == 0 || !std::isfinite(x) || !std::isfinite(y)) continue;
    least = std::min(least, std::fabs(y / x));
    most = std::max(most, std::fabs(y / x));
  }
  return most > least * apart;
}

}  // namespace

void RunCoverage::add(const Pass& pass) {
  begin(pass.info);
  add_tensors(pass, 0);
}

void RunCoverage::begin(const PassInfo& pass) {
  add_rows(pass);
  add_pages(pass);
}

// A request that starts again from 0 over a longer text has no cache; one whose positions go back
// was preempted.
void RunCoverage::add_rows(const PassInfo& pass) {
  std::map<int32_t, int> queries;
  std::map<int32_t, int32_t> first;
  std::map<int32_t, int32_t> before;  // of the requests of this pass alone
  std::map<int32_t, int32_t> ends;    // their lengths in it
  asks_for_logits_ = asks_for_logits_ || !pass.logit_rows.empty();
  most_rows_ = std::max(most_rows_, pass.rows.size());
  most_logit_rows_ = std::max(most_logit_rows_, pass.logit_rows.size());
  for (const PassRow& r : pass.rows) {
    const auto known = lengths_.find(r.row.request);
    const bool opens = first.try_emplace(r.row.request, r.row.position).second;
    if (opens && known != lengths_.end()) before.insert(*known);
    int32_t& length = lengths_[r.row.request];
    preempted_ = preempted_ || r.row.position < length;
    length = std::max(length, r.row.position + 1);
    ends[r.row.request] = r.row.position + 1;
    ++queries[r.row.request];
    decodes_ = decodes_ || r.phase == Phase::decode;
  }
  for (const auto& [request, count] : queries) {
    mixes_lengths_ = mixes_lengths_ || ends.at(request) != ends.begin()->second;
    if (before.contains(request)) {
      const bool all = first[request] == 0 && lengths_[request] > before.at(request);
      ++(all ? again_[request].all : again_[request].some);
    }
    chunked_ = chunked_ || (count > 1 && first[request] > 0);
    ragged_ = ragged_ || (page_size_ > 0 && lengths_[request] % page_size_ != 0);
  }
  most_requests_ = std::max(most_requests_, queries.size());
}

void RunCoverage::add_pages(const PassInfo& pass) {
  for (const Inherited& inherited : pass.inherited) {
    shared_ = true;
    parted_ = parted_ || (page_size_ > 0 && std::ssize(inherited.tokens) % page_size_ != 0);
  }
  for (const RequestPages& pages : pass.pages) {
    slots_known_ = true;
    most_pages_ = std::max(most_pages_, pages.pages.size());
    for (size_t i = 1; i < pages.pages.size(); ++i)
      scattered_ = scattered_ || pages.pages[i] != pages.pages[i - 1] + 1;
    std::vector<int32_t>& before = tables_[pages.request];
    const size_t both = std::min(before.size(), pages.pages.size());
    size_t other = 0;
    for (size_t i = 0; i < both; ++i) other += before[i] != pages.pages[i] ? 1 : 0;
    // A copy before a write changes one page of a table, swapping out and in again all of them.
    // A table of one page changes by a copy before a write only where a request parted inside that
    // page; else it was swapped.
    preempted_ = preempted_ || other > 1 || (other == 1 && both == 1 && !parted_);
    before = pages.pages;
  }
}

// Gains show in the norm of q beside its input: where all are the same, a norm that takes another
// element's is not seen.
void RunCoverage::add_tensors(const Pass& pass, size_t from) {
  for (size_t i = from; i < pass.tensors.size(); ++i) {
    const RecordedTensor& tensor = pass.tensors[i];
    if (tensor.shape.rank() != 3) continue;
    if (*tensor.point == point("attn.q_rope")) heads_ = tensor.shape[1];
    if (*tensor.point == point("attn.k_rope")) kv_heads_ = tensor.shape[1];
    if (gain_varies_ || !(*tensor.point == point("attn.q_norm"))) continue;
    const RecordedTensor* before = pass.find(point("attn.q"), tensor.layer);
    if (!before || before->shape != tensor.shape || before->rows != tensor.rows) continue;
    if (before->data.view().empty() || tensor.data.view().empty()) continue;
    gain_known_ = true;
    gain_varies_ = gains_vary(before->data, tensor.data);
  }
}

std::string RunCoverage::without_cache() const {
  std::vector<int32_t> requests;
  int64_t passes = 0;
  for (const auto& [request, again] : again_) {
    if (again.all == 0 || again.some > 0) continue;
    requests.push_back(request);
    passes += again.all;
  }
  if (requests.empty()) return "";
  const bool one = requests.size() == 1;
  return fmt::format(
      "{} computed again from position 0 in each of {} passes after the first: no cache is used",
      one ? fmt::format("request {} is", requests.front())
          : fmt::format("{} requests are", requests.size()),
      passes);
}

int32_t RunCoverage::longest() const {
  int32_t longest = 0;
  for (const auto& [request, length] : lengths_) longest = std::max(longest, length);
  return longest;
}

// A sentence for each class of bugs that no request reached: what it is, why, and which option
// would reach it.
std::vector<std::string> RunCoverage::blind_in_positions() const {
  std::vector<std::string> blind;
  const auto say = [&](bool is_blind, std::string text) {
    if (is_blind) blind.push_back(std::move(text));
  };
  const int32_t longest = this->longest();
  say(longest <= 1,
      "queries, keys, RoPE and masks (position 0 sees itself alone): a prompt of two tokens");
  say(longest > 1 && longest <= 256,
      fmt::format("positions past 255 (none is past 255; the last is {}; bf16 has all up to 256): "
                  "a longer prompt, or --max-new 256",
                  longest - 1));
  say(window_ > 0 && longest <= window_,
      fmt::format("the sliding window (no position is past its {} keys): a longer prompt",
                  window_));
  say(!decodes_, "decoding (prefill only): --max-new 2");
  say(!chunked_, "masks of chunks (no pass has several queries over a longer cache): --chunk 4");
  say(heads_ > 0 && (heads_ == kv_heads_ || kv_heads_ == 1),
      fmt::format("the map from heads to K/V heads ({} heads, {} K/V heads): a model with groups",
                  heads_, kv_heads_));
  say(gain_known_ && !gain_varies_,
      "QK-norm with the gains of other dims (all gains are the same): trained weights");
  return blind;
}

std::vector<std::string> RunCoverage::blind_in_pages() const {
  // Nothing is said about pages of an engine without page tables, not even that they are untested.
  if (!slots_known_) return {};
  std::vector<std::string> blind;
  const auto say = [&](bool is_blind, std::string text) {
    if (is_blind) blind.push_back(std::move(text));
  };
  say(most_pages_ < 3,
      fmt::format("tables of 3 pages (no request has 3 pages; most: {}): --page-size 4, or a "
                  "longer prompt",
                  most_pages_));
  say(most_pages_ > 1 && !scattered_,
      "page tables that are ignored (all pages lie in order): --page-order 3");
  say(page_size_ > 1 && !ragged_,
      fmt::format("unused slots of a last page (every length is a multiple of {}): --max-new 3",
                  page_size_));
  say(!shared_,
      "shared pages (none begins with another's tokens): --prefix-cache, and prompts that begin "
      "with the same page");
  say(page_size_ > 1 && !parted_,
      "copy on write (no requests part inside a page): --prefix-cache, and a prompt twice");
  say(!preempted_,
      "preemption (no request was preempted): --pages N, fewer than all requests need together");
  return blind;
}

std::vector<std::string> RunCoverage::blind_in_batches() const {
  std::set<int32_t> different;
  for (const auto& [request, length] : lengths_) different.insert(length);
  // An op that only ever has one row takes another path in many engines, and a row of it cannot be
  // taken for another. That is said here, as a baseline knows what is untested by its subject.
  const char* rows = most_rows_ < 2                             ? ", nor two rows of any op"
                     : asks_for_logits_ && most_logit_rows_ < 2 ? ", nor two rows of logits"
                                                                : "";
  if (most_requests_ < 2)
    return {fmt::format("mixed-up requests (no pass has two requests{}): a second --prompt", rows)};
  if (different.size() < 2)
    return {"mixed-up lengths (all are equally long): prompts of several lengths"};
  if (!mixes_lengths_)
    return {"mixed-up lengths (no pass has requests of two lengths): such prompts together"};
  return {};
}

std::vector<std::string> RunCoverage::not_covered() const {
  std::vector<std::string> blind = blind_in_positions();
  for (const auto& more : {blind_in_pages(), blind_in_batches()})
    blind.insert(blind.end(), more.begin(), more.end());
  return blind;
}

}  // namespace lockstep
