// Why two requests part. A token that differs is traced to what chose it: another prompt or forced
// token (chosen), a draw from other logits (drawn), two logits that each side had the other way
// round within noise (near_tie), or numbers that nobody kept (unknown).
#include "src/diff/diff_tokens.h"

#include <fmt/format.h>

#include <algorithm>

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

bool forces(const RequestInfo* request) { return request != nullptr && !request->forced.empty(); }

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
  for (const RequestInfo* request : {a, b})
    if (request != nullptr && flip.position < std::ssize(request->prompt)) return chosen;
  if (forces(a) || forces(b)) return chosen;
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

// A token that was drawn last is fed to nobody, so that no row shows it: the lists of the requests
// do.
void DiffTokens::compare_last_drawn() {
  if (!selection_.has(point("token"), -1)) return;
  for (const RequestInfo& x : a_.trace().manifest().requests) {
    const RequestInfo* y = b_.request(x.id);
    if (y == nullptr || !(x.sampled || y->sampled) || x.prompt != y->prompt) continue;
    const auto [of_x, of_y] = std::ranges::mismatch(x.tokens, y->tokens);
    const auto made = std::ssize(x.prompt) + (of_x - x.tokens.begin());
    const Row row{x.id, static_cast<int32_t>(made)};
    if (of_x == x.tokens.end() || of_y == y->tokens.end()) continue;
    if (!wanted({row.request, row.position - 1})) continue;
    stop(flip_of(row, *of_x, *of_y),
         fmt::format("request {} drew token {} and {} after position {}", x.id, *of_x, *of_y,
                     row.position - 1));
  }
}

void DiffTokens::compare_named() {
  for (const RequestInfo& x : a_.trace().manifest().requests) {
    const RequestInfo* y = b_.request(x.id);
    if (y == nullptr || x.prompt != y->prompt) continue;
    const auto [of_x, of_y] = std::ranges::mismatch(x.tokens, y->tokens);
    if (of_x == x.tokens.end() || of_y == y->tokens.end()) continue;
    const Row row{x.id, static_cast<int32_t>(std::ssize(x.prompt) + (of_x - x.tokens.begin()))};
    // The tokens that were fed there are known, and were compared.
    if (!wanted(row) || a_.computed(row).empty() || b_.computed(row).empty()) continue;
    result_.structure.push_back(fmt::format(
        "request {} is said to have got token {} and {} at position {}, which its rows do not "
        "show: one of the traces contradicts itself",
        row.request, *of_x, *of_y, row.position));
  }
}

}  // namespace lockstep
