// Requests are paired by prompt, then by name, then by order; a trace whose requests got other
// numbers is read through a reader that renames them everywhere.
#include "src/diff/match_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace lockstep {
namespace {

using Numbers = std::map<int32_t, int32_t>;  // of b -> of a

// A trace whose requests have other numbers.
class RenamedTrace final : public TraceReader {
 public:
  RenamedTrace(TraceReader& trace, Numbers numbers)
      : trace_(trace), numbers_(std::move(numbers)), manifest_(trace.manifest()) {
    for (RequestInfo& request : manifest_.requests) rename(request.id);
  }

  const Manifest& manifest() const override { return manifest_; }
  int passes() const override { return trace_.passes(); }
  bool complete() const override { return trace_.complete(); }
  const std::vector<std::string>& problems() const override { return trace_.problems(); }

  Pass read(int i, bool data) override {
    Pass pass = trace_.read(i, data);
    for (PassRow& r : pass.info.rows) rename(r.row.request);
    for (auto* tables : {&pass.info.pages, &pass.info.idle})
      for (RequestPages& table : *tables) rename(table.request);
    for (Inherited& inherited : pass.info.inherited) rename(inherited.request);
    for (RecordedTensor& tensor : pass.tensors)
      for (Row& row : tensor.rows) rename(row.request);
    for (TopLogits& top : pass.logits) rename(top.row.request);
    return pass;
  }

 private:
  void rename(int32_t& request) const {
    const auto found = numbers_.find(request);
    if (found != numbers_.end()) request = found->second;
  }

  TraceReader& trace_;
  Numbers numbers_;
  Manifest manifest_;
};

const RequestInfo* request_of(const Manifest& manifest, int32_t id) {
  const auto found = std::ranges::find(manifest.requests, id, &RequestInfo::id);
  return found == manifest.requests.end() ? nullptr : &*found;
}

// The pairs of one number that stay, and those of another one.
Numbers pairs_of(const Manifest& a, const Manifest& b) {
  Numbers pairs;
  std::set<int32_t> taken;
  const auto pair = [&](int32_t of_b, int32_t of_a) {
    pairs[of_b] = of_a;
    taken.insert(of_a);
  };
  for (const RequestInfo& y : b.requests)
    if (const RequestInfo* x = request_of(a, y.id); x && x->prompt == y.prompt) pair(y.id, y.id);
  for (const bool by_name : {true, false})
    for (const RequestInfo& y : b.requests) {
      const auto fits = [&](const RequestInfo& x) {
        return !taken.contains(x.id) && x.prompt == y.prompt && (!by_name || x.name == y.name);
      };
      const auto found = std::ranges::find_if(a.requests, fits);
      if (!pairs.contains(y.id) && found != a.requests.end()) pair(y.id, found->id);
    }
  // Those that fit nothing keep their numbers where these are free, and so stay seen as different.
  int32_t next = 0;
  for (const Manifest* manifest : {&a, &b})
    for (const RequestInfo& request : manifest->requests) next = std::max(next, request.id + 1);
  for (const RequestInfo& y : b.requests)
    if (!pairs.contains(y.id)) pair(y.id, taken.contains(y.id) ? next++ : y.id);
  return pairs;
}

}  // namespace

MatchedRequests::MatchedRequests(TraceReader& a, TraceReader& b) : b_(b) {
  const Numbers numbers = pairs_of(a.manifest(), b.manifest());
  for (const auto& [of_b, of_a] : numbers) {
    if (of_a == of_b) continue;
    sentences_.push_back(request_of(a.manifest(), of_a)
                             ? fmt::format("request {} of the second trace has the tokens of "
                                           "request {} of the first, and is compared with it",
                                           of_b, of_a)
                             : fmt::format("request {} of the second trace is numbered {} here, as "
                                           "another one has its number in the first",
                                           of_b, of_a));
  }
  if (!sentences_.empty()) renamed_ = std::make_unique<RenamedTrace>(b, numbers);
}

}  // namespace lockstep
