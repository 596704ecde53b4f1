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

using Numbering = std::map<int32_t, int32_t>;  // of b -> of a

// A trace whose requests have other numbers.
class RenamedTrace final : public TraceReader {
 public:
  RenamedTrace(TraceReader& trace, Numbering numbers)
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
  Numbering numbers_;
  Manifest manifest_;
};

// A request of a trace, by what tells who it is.
struct Asked {
  int32_t id = 0;
  std::string name;
  std::vector<int32_t> prompt;  // of /requests, else what its first pass computed
  std::vector<int32_t> fed;     // the prompt and what followed it
};

// All requests of a trace: those that it lists, then those that it computed.
class AllAsked {
 public:
  explicit AllAsked(TraceReader& trace) {
    for (const RequestInfo& r : trace.manifest().requests) add({r.id, r.name, r.prompt, r.prompt});
    for (int i = 0; i < trace.passes(); ++i) enter(trace.read(i, false).info);
  }

  std::vector<Asked> take() && { return std::move(all_); }

 private:
  Asked& add(Asked request) {
    at_[request.id] = all_.size();
    return all_.emplace_back(std::move(request));
  }

  // The rows of a pass go on where the request has come to.
  void enter(const PassInfo& pass) {
    std::set<int32_t> fresh;
    for (const PassRow& r : pass.rows) {
      const int32_t id = r.row.request;
      if (!at_.contains(id)) fresh.insert(add({.id = id}).id);
      Asked& request = all_[at_[id]];
      if (r.row.position != std::ssize(request.fed)) continue;
      request.fed.push_back(r.token);
      if (fresh.contains(id)) request.prompt.push_back(r.token);
    }
  }

  std::vector<Asked> all_;
  std::map<int32_t, size_t> at_;  // by id
};

// How many tokens two requests have in common from their beginnings, where these make them one: all
// of one of the two, or more than their prompts; else 0.
size_t common(const Asked& x, const Asked& y) {
  const auto [end, other] = std::ranges::mismatch(x.fed, y.fed);
  const size_t same = end - x.fed.begin();
  const bool all = same == std::min(x.fed.size(), y.fed.size());
  return all || same >= std::max(x.prompt.size(), y.prompt.size()) ? same : 0;
}

// Numbers are kept where all requests of a prompt have them in both traces; else names decide, then
// prompts with what was fed after them, then the longest common beginning.
class Pairs {
 public:
  Pairs(const std::vector<Asked>& a, const std::vector<Asked>& b) : a_(a), b_(b) {
    for (const Asked& y : b_)
      if (keeps_number(y)) pair(y, y.id);
    using Fits = bool (*)(const Asked&, const Asked&);
    for (const Fits fits : {
             Fits([](const Asked&x, const Asked&y) { return is_named(x, y); }),
             Fits([](const Asked&x, const Asked&y) { return same_prompt(x, y) && x.fed == y.fed; }),
             Fits([](const Asked&x, const Asked&y) { return same_prompt(x, y); }),
         })
      for (const Asked& y : b_) pair_first(y, fits);
    for (const Asked& y : b_) pair_nearest(y);
    renumbers_ = std::ranges::any_of(numbers_, [](const auto& n) { return n.first != n.second; });
    for (const Asked& y : b_) number_rest(y);
  }

  const Numbering& numbers() const { return numbers_; }
  bool has_partner(const Asked& x) const { return taken_.contains(x.id); }

 private:
  static bool same_prompt(const Asked& x, const Asked& y) {
    return !x.prompt.empty() && x.prompt == y.prompt;
  }
  static bool is_named(const Asked& x, const Asked& y) {
    return same_prompt(x, y) && x.name == y.name && !x.name.empty();
  }
  const Asked* of_a(int32_t id) const {
    const auto found = std::ranges::find(a_, id, &Asked::id);
    return found == a_.end() ? nullptr : &*found;
  }
  bool is_free(const Asked& x) const { return !taken_.contains(x.id); }

  void pair(const Asked& y, int32_t number) {
    numbers_[y.id] = number;
    taken_.insert(number);
  }

  // All requests of its prompt have numbers that those of this prompt have in a.
  bool keeps_number(const Asked& y) const {
    return std::ranges::all_of(b_, [&](const Asked& other) {
      if (other.id != y.id && !same_prompt(other, y)) return true;
      const Asked* x = of_a(other.id);
      return x != nullptr && same_prompt(*x, y);
    });
  }

  template <typename Fits>
  void pair_first(const Asked& y, Fits fits) {
    if (numbers_.contains(y.id)) return;
    const auto found =
        std::ranges::find_if(a_, [&](const Asked& x) { return is_free(x) && fits(x, y); });
    if (found != a_.end()) pair(y, found->id);
  }

  void pair_nearest(const Asked& y) {
    if (numbers_.contains(y.id)) return;
    const Asked* nearest = nullptr;
    size_t most = 0;
    for (const Asked& x : a_)
      if (const size_t same = common(x, y); is_free(x) && same > most) nearest = &x, most = same;
    if (nearest != nullptr) pair(y, nearest->id);
  }

  // One that fits nothing is seen as another request than that of its number, which it keeps where
  // both traces number in one way; else it is one that a does not have.
  void number_rest(const Asked& y) {
    if (numbers_.contains(y.id)) return;
    const bool keeps = is_free(y) && (of_a(y.id) == nullptr || !renumbers_);
    if (keeps) return pair(y, y.id);
    int32_t next = 0;
    for (const std::vector<Asked>* all : {&a_, &b_})
      for (const Asked& request : *all) next = std::max(next, request.id + 1);
    while (taken_.contains(next)) ++next;
    pair(y, next);
  }

  const std::vector<Asked>&a_, &b_;
  Numbering numbers_;
  std::set<int32_t> taken_;
  bool renumbers_ = false;
};

bool lists(const std::vector<Asked>& requests, int32_t id) {
  return std::ranges::find(requests, id, &Asked::id) != requests.end();
}

std::string text_of_alone(const Asked& request, const char* trace) {
  return fmt::format("request {} of {} tokens is in the {} trace only, and is not compared",
                     request.id, request.fed.size(), trace);
}

}  // namespace

MatchedRequests::MatchedRequests(TraceReader& a, TraceReader& b) : b_(b) {
  const std::vector<Asked> of_a = AllAsked(a).take(), of_b = AllAsked(b).take();
  const Pairs pairs(of_a, of_b);
  for (const auto& [theirs, ours] : pairs.numbers())
    if (ours != theirs && lists(of_a, ours))
      sentences_.push_back(
          fmt::format("request {} of the second trace has the tokens of request {} of the first, "
                      "and is compared with it",
                      theirs, ours));
    else if (ours != theirs)
      sentences_.push_back(
          fmt::format("request {} of the second trace is numbered {} here, as another one has its "
                      "number in the first",
                      theirs, ours));
  for (const Asked& request : of_a)
    if (!pairs.has_partner(request)) alone_.push_back(text_of_alone(request, "first"));
  for (const Asked& request : of_b)
    if (!lists(of_a, pairs.numbers().at(request.id)))
      alone_.push_back(text_of_alone(request, "second"));
  if (!sentences_.empty()) renamed_ = std::make_unique<RenamedTrace>(b, pairs.numbers());
}

}  // namespace lockstep
