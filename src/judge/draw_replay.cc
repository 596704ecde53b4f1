// Holds every drawn token to its logits. Requests whose way to draw is known only at the end keep
// their logits until then, up to a bound; what goes beyond it is counted and said.
#include "src/judge/draw_replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "src/judge/draw.h"

namespace lockstep {
namespace {

// Logits of requests that are known at the end only: 64 MiB. Draws beyond are not replayed, and
// counted.
constexpr int64_t kMostKept = 1 << 24;

// Number of the choice that the row at `position` makes; -1: none that was drawn.
int64_t drawn_choice(const RequestInfo& info, int32_t position) {
  const int64_t choice = position + 1 - std::ssize(info.prompt);
  const bool drawn = info.sampled && choice >= std::ssize(info.forced);
  return drawn && choice >= 0 && !info.prompt.empty() ? choice : -1;
}

}  // namespace

const RequestInfo* DrawReplay::find(int32_t request) const {
  const auto found = std::ranges::find(known_, request, &RequestInfo::id);
  return found == known_.end() ? nullptr : &*found;
}

// A request that is not known yet has its logits kept until the end, as far as there is room.
void DrawReplay::add(const Pass& pass, const Text& text) {
  // A run in which nobody samples pays nothing for its logits.
  const bool any = std::ranges::any_of(known_, &RequestInfo::sampled);
  const RecordedTensor* logits = pass.find(point("logits"), -1);
  if (!any || !logits || !is_float(logits->dtype) || logits->data.view().empty()) return;
  const size_t width = logits->data.view().row_size();
  for (size_t i = 0; i < logits->rows.size(); ++i) {
    const Row& row = logits->rows[i];
    const RequestInfo* info = find(row.request);
    if (info && drawn_choice(*info, row.position) < 0) continue;
    Choice choice{.pass = pass.info.pass};
    std::vector<double> values(width);
    widen(logits->data, i * width, values);
    if (info && info->draw) {
      choice.possible =
          possible_draws(values, *info->draw, text(row), drawn_choice(*info, row.position));
    } else if (!info && kept_ + width <= kMostKept) {
      kept_ += width;
      choice.logits.assign(values.begin(), values.end());
      choice.text = text(row);
    }
    choices_[{row.request, row.position}] = std::move(choice);
  }
}

// Forced tokens were not drawn. A choice whose logits are not known is counted, not judged.
DrawReplay::Outcome DrawReplay::outcome(const std::vector<RequestInfo>& requests) const {
  Outcome outcome;
  for (const RequestInfo& info : requests) {
    if (!info.sampled) continue;
    for (size_t i = info.forced.size(); i < info.tokens.size(); ++i) {
      ++outcome.drawn;
      const auto position = static_cast<int32_t>(info.prompt.size() + i) - 1;
      const auto found = choices_.find({info.id, position});
      if (found == choices_.end()) continue;
      const Choice& choice = found->second;
      std::vector<int32_t> possible = choice.possible;
      if (possible.empty() && info.draw && !choice.logits.empty())
        possible = possible_draws(std::vector<double>(choice.logits.begin(), choice.logits.end()),
                                  *info.draw, choice.text, i);
      if (possible.empty()) continue;
      ++outcome.replayed;
      if (std::ranges::count(possible, info.tokens[i]) > 0) continue;
      outcome.findings.push_back(
          {.node = {.place = {&point("token"), -1}, .pass = choice.pass, .request = info.id},
           .position = position,
           .verdict = Verdict::structural,
           .rule =
               fmt::format("token {} was drawn, but the request's seed and these logits draw {}",
                           info.tokens[i], fmt::join(possible, " or "))});
    }
  }
  return outcome;
}

}  // namespace lockstep
