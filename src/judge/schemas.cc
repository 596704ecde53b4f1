#include "src/judge/schemas.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/judge/budget.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

// Layers that decide.
constexpr size_t kFirstLayers = 3;

bool fits(const NodeOutcome& outcome) { return !is_finding(outcome); }

}  // namespace

std::span<const Schema> Schemas::candidates(const Point& point) const {
  const std::span<const Schema> all = schemas_of(point.op);
  const auto declared = declared_.find(std::string(point.name));
  if (declared == declared_.end()) return all;
  // Of an op whose schemas are the same, eager means hf and hf means fused.
  const auto i = std::min(static_cast<size_t>(declared->second), all.size() - 1);
  return all.subspan(i, 1);
}

size_t Schemas::choose(const Place& place, std::span<const NodeOutcome> outcomes, bool telling) {
  if (outcomes.size() < 2) return 0;
  Votes& votes = votes_[order_of(*place.point)];
  votes.point = place.point;
  const auto best = std::ranges::find_if(outcomes, fits);
  const auto strictest = static_cast<size_t>(best - outcomes.begin());
  // What fits none is a bug and says nothing about the schema; what fits a strict one by having
  // little to round says nothing either.
  if (best != outcomes.end() && (telling || strictest > 0)) {
    size_t& vote = votes.by_layer.try_emplace(place.layer, strictest).first->second;
    vote = std::max(vote, strictest);
  }
  if (votes.frozen) return votes.chosen;
  votes.chosen = most_frequent(votes);
  votes.frozen = votes.by_layer.size() >= kFirstLayers;
  return best == outcomes.end() ? votes.chosen : std::max(strictest, votes.chosen);
}

size_t Schemas::most_frequent(const Votes& votes) {
  std::array<int, 3> counts{};
  for (const auto& [layer, vote] : votes.by_layer) ++counts[vote];
  return static_cast<size_t>(std::ranges::max_element(counts) - counts.begin());
}

Schema Schemas::of(const Point& point) const {
  const auto votes = votes_.find(order_of(point));
  return candidates(point)[votes == votes_.end() ? 0 : votes->second.chosen];
}

std::vector<std::string> Schemas::notes() const {
  std::vector<std::string> notes;
  for (const auto& [order, votes] : votes_)
    if (!votes.by_layer.empty())
      notes.push_back(fmt::format("{} is judged as {}, which it was found to be", votes.point->name,
                                  name_of(of(*votes.point))));
  return notes;
}

std::vector<std::pair<Place, std::string>> Schemas::strangers() const {
  std::vector<std::pair<Place, std::string>> strangers;
  for (const auto& [order, votes] : votes_)
    for (const auto& [layer, vote] : votes.by_layer)
      if (vote != votes.chosen)
        strangers.push_back(
            {{votes.point, layer},
             fmt::format("it rounds as {} and the others of its point as {}: one kernel rounds in "
                         "one way",
                         name_of(candidates(*votes.point)[vote]), name_of(of(*votes.point)))});
  return strangers;
}

}  // namespace lockstep
