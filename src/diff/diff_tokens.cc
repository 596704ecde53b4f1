// Why two requests part. A token that differs is traced to what chose it: another prompt or forced
// token (chosen), a draw from other logits (drawn), two logits that each side had the other way
// round within noise (near_tie), or numbers that nobody kept (unknown).
#include "src/diff/diff_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/diff/diff_noise.h"

namespace lockstep {
namespace {

// The logit of a token among the best of a row.
std::optional<double> logit_of(const TopLogits& top, int32_t token) {
  const auto found = std::ranges::find(top.ids, token);
  if (found == top.ids.end()) return {};
  return top.values[found - top.ids.begin()];
}

// How much larger the logit of one token is than that of another.
std::optional<double> lead_of(const TopLogits& top, int32_t token, int32_t other) {
  const auto own = logit_of(top, token), of_other = logit_of(top, other);
  if (!own || !of_other) return {};
  return *own - *of_other;
}

// Whether the token of that position is one that the request was made to take.
bool forces(const RequestInfo* request, int32_t position) {
  return request != nullptr && position < std::ssize(request->prompt) + std::ssize(request->forced);
}

// The verb of how they came to the token of that position; null: each chose the most likely one.
const char* how_chosen(const RequestInfo& x, const RequestInfo& y, int32_t position) {
  if (forces(&x, position) || forces(&y, position)) return "has";
  return x.sampled || y.sampled ? "drew" : nullptr;
}

// Whether the trace says what became of the request.
bool says_tokens(const RequestInfo& request) {
  return !request.tokens.empty() || !request.argmax.empty();
}

// The tokens from position 0 on, as the trace lists them.
std::vector<int32_t> said(const RequestInfo& request, const std::vector<int32_t>& after_prompt) {
  std::vector<int32_t> all = request.prompt;
  all.insert(all.end(), after_prompt.begin(), after_prompt.end());
  return all;
}

// A trace that begins where requests have come to may list what it saw of them alone: its lists are
// not from position 0 on then.
bool lists_from_zero(const DiffSide& side, const RequestInfo& request) {
  const auto first = side.rows().lower_bound({request.id, std::numeric_limits<int32_t>::min()});
  if (request.prompt.empty()) return false;
  if (first == side.rows().end() || first->first.first != request.id) return true;
  const std::vector<int32_t> listed = said(request, request.tokens);
  const int32_t at = first->first.second;
  return at == 0 || (at < std::ssize(listed) && listed[at] == first->second.front().token);
}

size_t first_other(const std::vector<int32_t>& mine, const std::vector<int32_t>& theirs) {
  return std::ranges::mismatch(mine, theirs).in1 - mine.begin();
}

// Whether `mine` are indices of the largest scores, as far as they are not `theirs`: an equal score
// does as well, and NaN is in no order.
bool of_largest(const std::vector<double>& scores, std::span<const double> mine,
                std::span<const double> theirs) {
  const auto valid = [&](double i) { return i >= 0 && i < static_cast<double>(scores.size()); };
  for (size_t i = 0; i < mine.size(); ++i) {
    const std::span before = mine.first(i);
    if (!valid(mine[i]) || std::ranges::count(before, mine[i]) > 0) return false;
    if (!valid(theirs[i]) || std::ranges::count(before, theirs[i]) > 0) continue;
    if (scores[static_cast<size_t>(mine[i])] < scores[static_cast<size_t>(theirs[i])]) return false;
  }
  return true;
}

}  // namespace

// How sure the surer of the two sides was of its own token, in ulp of that logit.
std::optional<double> DiffTokens::margin_ulp(const Row& row, int32_t token_a,
                                             int32_t token_b) const {
  const TopLogits *a = a_.top_logits(row), *b = b_.top_logits(row);
  if (a == nullptr || b == nullptr) return {};
  const auto of_a = lead_of(*a, token_a, token_b), of_b = lead_of(*b, token_b, token_a);
  if (!of_a || !of_b) return {};
  const DType dtype = a_.trace().manifest().dtype;
  return std::max(*of_a / ulp(*logit_of(*a, token_a), dtype),
                  *of_b / ulp(*logit_of(*b, token_b), dtype));
}

// Each side chose the best of its own row, and has the other's choice among its best.
std::optional<bool> DiffTokens::is_tie(const Row& row, int32_t token_a, int32_t token_b) const {
  const TopLogits *a = a_.top_logits(row), *b = b_.top_logits(row);
  if (a == nullptr || b == nullptr || a->values.empty() || b->values.empty()) return {};
  return logit_of(*a, token_a) == a->values[0] && logit_of(*b, token_b) == b->values[0] &&
         logit_of(*a, token_b) && logit_of(*b, token_a);
}

std::optional<bool> DiffTokens::are_of_largest(const ShownRow& x, const ShownRow& y,
                                               const Point& point, size_t input) {
  const Row& row = x.row();
  const auto of_x = a_.find(x.pass, input, row, x.index),
             of_y = b_.find(y.pass, input, row, y.index);
  const std::vector<double> mine = x.numbers(), theirs = y.numbers();
  if (of_x && of_y && !mine.empty() && !theirs.empty()) {
    const std::vector<double> scores_x = of_x->numbers(), scores_y = of_y->numbers();
    if (!scores_x.empty() && !scores_y.empty())
      return of_largest(scores_x, mine, theirs) && of_largest(scores_y, theirs, mine);
  }
  const TopLogits *top_x = a_.top_logits(row), *top_y = b_.top_logits(row);
  if (point.op != OpKind::argmax || !top_x || !top_y) return {};
  const int32_t x_chose = mine.empty() ? top_x->chosen : static_cast<int32_t>(mine[0]);
  const int32_t y_chose = theirs.empty() ? top_y->chosen : static_cast<int32_t>(theirs[0]);
  if (x_chose < 0 || y_chose < 0) return {};
  return is_tie(row, x_chose, y_chose);
}

DiffResult::Flip::Cause DiffTokens::cause_of(const Row& chosen_at,
                                             const DiffResult::Flip& flip) const {
  using enum DiffResult::Flip::Cause;
  const RequestInfo *a = a_.request(flip.request), *b = b_.request(flip.request);
  if (forces(a, flip.position) || forces(b, flip.position)) return chosen;
  const bool sampled = (a && a->sampled) || (b && b->sampled);
  const auto tie = is_tie(chosen_at, flip.token_a, flip.token_b);
  if (!sampled) return !tie ? unknown : *tie ? near_tie : chosen;
  if (!a || !b || a->sampled != b->sampled || a->draw != b->draw) return chosen;
  const TopLogits *of_a = a_.top_logits(chosen_at), *of_b = b_.top_logits(chosen_at);
  if (of_a == nullptr || of_b == nullptr) return unknown;
  return of_a->values == of_b->values && of_a->ids == of_b->ids ? chosen : drawn;
}

DiffResult::Flip DiffTokens::flip_of(const Row& row, int32_t token_a, int32_t token_b) const {
  DiffResult::Flip flip{
      .request = row.request, .position = row.position, .token_a = token_a, .token_b = token_b};
  const Row chosen_at{row.request, row.position - 1};
  flip.margin_ulp = margin_ulp(chosen_at, token_a, token_b);
  flip.cause = cause_of(chosen_at, flip);
  return flip;
}

void DiffTokens::stop(const DiffResult::Flip& flip, const std::string& sentence) {
  stopped_[flip.request] = flip.position;
  result_.flips.push_back(flip);
  if (flip.cause == DiffResult::Flip::Cause::chosen)
    result_.structure.push_back(sentence + ": it is not compared from there on");
}

void DiffTokens::fed(const Row& row, int32_t token_a, int32_t token_b) {
  stop(flip_of(row, token_a, token_b),
       fmt::format("request {} was fed token {} and {} at position {}", row.request, token_a,
                   token_b, row.position));
}

void DiffTokens::chose_experts(const Row& row, int layer, std::optional<bool> tie) {
  using enum DiffResult::Flip::Cause;
  stop({.cause = !tie   ? unknown
                 : *tie ? near_tie
                        : chosen,
        .request = row.request,
        .position = row.position,
        .layer = layer},
       fmt::format("request {} chose other experts at position {} in layer {}", row.request,
                   row.position, layer));
}

void DiffTokens::contradict(const std::string& sentence) {
  result_.structure.push_back(sentence +
                              ", which its rows do not show: one of the traces contradicts itself");
}

void DiffTokens::compare_requests() {
  const auto &of_a = a_.trace().manifest().requests, &of_b = b_.trace().manifest().requests;
  if (of_a.empty() || of_b.empty()) return;  // that trace lists none
  for (const RequestInfo& x : of_a) {
    if (!selection_.has_request(x.id)) continue;
    const RequestInfo* y = b_.request(x.id);
    if (y == nullptr)
      name_alone(x.id, "first");
    else if (says_tokens(x) && says_tokens(*y) && lists_from_zero(a_, x) && lists_from_zero(b_, *y))
      compare_said(x, *y);
  }
  for (const RequestInfo& y : of_b)
    if (selection_.has_request(y.id) && a_.request(y.id) == nullptr) name_alone(y.id, "second");
}

// Tokens that one trace alone computed are counted where its rows are.
void DiffTokens::name_alone(int32_t request, const char* trace) {
  if (!a_.computes(request) && !b_.computes(request))
    result_.structure.push_back(fmt::format("request {} is in the {} trace only", request, trace));
}

// Rows tell which tokens were fed, and were compared: a list that says otherwise is not true. What
// is said to be forced is said to be fed, and may be said in one of the two traces alone.
void DiffTokens::compare_said(const RequestInfo& x, const RequestInfo& y) {
  const std::vector<int32_t> of_x = said(x, x.tokens), of_y = said(y, y.tokens);
  for (const auto& [mine, theirs] : {std::pair(of_x, of_y), std::pair(said(x, x.forced), of_y),
                                     std::pair(of_x, said(y, y.forced))}) {
    const size_t at = first_other(mine, theirs);
    if (at == std::min(mine.size(), theirs.size())) continue;
    const Row row{x.id, static_cast<int32_t>(at)};
    if (!wanted(row) || a_.computed(row).empty() || b_.computed(row).empty()) continue;
    return contradict(fmt::format("request {} is said to have got token {} and {} at position {}",
                                  x.id, mine[at], theirs[at], at));
  }
  if (!selection_.has(point("token"), -1)) return;
  const size_t end = first_other(of_x, of_y);
  if (const Row row{x.id, static_cast<int32_t>(end)}; end < std::min(of_x.size(), of_y.size()))
    compare_chosen(row, of_x[end], of_y[end], how_chosen(x, y, row.position));
  else if (of_x.size() != of_y.size())
    compare_more(row, of_x.size() > of_y.size());
  if (x.prompt == y.prompt) compare_likely(x, y);
  compare_ends(x, y);
}

// A token that was not fed to both. Of the point `token` the most likely is shown, not what was
// drawn or forced: of that the lists alone tell.
void DiffTokens::compare_chosen(const Row& row, int32_t token_a, int32_t token_b, const char* how) {
  const Row before{row.request, row.position - 1};
  if (stopped(row) || !wanted(before)) return;
  const TopLogits *of_a = a_.top_logits(before), *of_b = b_.top_logits(before);
  const bool untrue =
      how == nullptr && ((of_a && of_a->chosen != token_a) || (of_b && of_b->chosen != token_b));
  const std::string sentence =
      fmt::format("token {} and {} after position {}", token_a, token_b, before.position);
  if (untrue)
    return contradict(fmt::format("request {} is said to have chosen {}", row.request, sentence));
  stop(flip_of(row, token_a, token_b),
       fmt::format("request {} {} {}", row.request, how ? how : "chose", sentence));
}

// One of the lists goes on at that row. That it does so because its run did is no matter of lists:
// the rows that one trace alone computed are counted.
void DiffTokens::compare_more(const Row& row, bool in_a) {
  const DiffSide &longer = in_a ? a_ : b_, &shorter = in_a ? b_ : a_;
  const Row before{row.request, row.position - 1};
  if (stopped(row) || !wanted(before)) return;
  const bool ran_on = !longer.computed(row).empty() || !longer.computed(before).empty();
  const bool chose = !shorter.computed(row).empty() || shorter.top_logits(before) != nullptr;
  if (!chose && (ran_on || !shorter.computed(before).empty())) return;
  result_.structure.push_back(
      fmt::format("request {} is said to have a token at position {} in the {} trace only",
                  row.request, row.position, in_a ? "first" : "second"));
}

// The most likely token of each step is the one that the point `token` shows.
void DiffTokens::compare_likely(const RequestInfo& x, const RequestInfo& y) {
  if (x.argmax.empty() || y.argmax.empty()) return;  // that trace does not say
  const auto listed = [](const RequestInfo& request, size_t step) {
    return step < request.argmax.size() ? std::optional(request.argmax[step]) : std::nullopt;
  };
  for (size_t i = 0; i < std::min(x.tokens.size(), y.tokens.size()); ++i) {
    const Row row{x.id, static_cast<int32_t>(x.prompt.size() + i) - 1};
    const TopLogits *of_a = a_.top_logits(row), *of_b = b_.top_logits(row);
    if (!wanted(row) || of_a == nullptr || of_b == nullptr) return;
    const bool shown = listed(x, i) == of_a->chosen && listed(y, i) == of_b->chosen;
    if (listed(x, i) == listed(y, i) || shown) continue;
    return contradict(fmt::format(
        "request {} is said to have one most likely token after position {} and another, or none",
        row.request, row.position));
  }
}

// Why it chose no more. Of requests that ask for other numbers of tokens these may be why.
void DiffTokens::compare_ends(const RequestInfo& x, const RequestInfo& y) {
  const bool alike = x.max_new >= 0 && x.max_new == y.max_new && x.forced.empty() &&
                     y.forced.empty() && x.tokens == y.tokens;
  if (alike && x.stopped != y.stopped && !stopped_.contains(x.id))
    result_.structure.push_back(
        fmt::format("request {} was ended by an end token or a stop text in the {} trace only",
                    x.id, x.stopped ? "first" : "second"));
}

}  // namespace lockstep
