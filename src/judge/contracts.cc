// A vote: a place fits a contract under which none of its nodes is a finding, and a point has the
// contract that most of its layers fit; the order of the candidates, the strictest first, breaks
// ties. A place that fits none has no vote, so that a bug does not choose its own excuse. It would
// where a contract allows all that a stricter one does: that fits the wrong layer besides the right
// ones, and so one more. Where results show each rounding on the way, most layers are enough.
#include "src/judge/contracts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "src/stats/mutant.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

using enum RoundingContract;

// Layers that a candidate fails in before it is out.
constexpr size_t kFailingLayers = 3;

// The point whose contract says how much the kernel of `point` may round on the way; null: none.
const Point* bound_of(const Point& point) {
  static constexpr const Point& kPartial = lockstep::point("attn.partial");
  const bool is_bound = point.op == OpKind::log_sum_exp || point.op == OpKind::attention;
  return is_bound ? &kPartial : nullptr;
}

}  // namespace

// In fp32 nothing is rounded in between, and all contracts are one.
std::vector<RoundingContract> candidates_of(OpKind op, const ContractTraits& traits) {
  const auto tried = judged_op(op).tried;
  if (traits.dtype == DType::f32 || tried == nullptr) return {fused};
  return tried(traits);
}

std::vector<RoundingContract> contracts_of(OpKind op, const ContractTraits& traits) {
  std::vector<RoundingContract> all = candidates_of(op, traits);
  if (const auto declared = judged_op(op).declared) {
    const std::vector<RoundingContract> more = declared(traits);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// Declared for a whole engine, a contract means for each op the nearest that it can have.
RoundingContract meant_by(RoundingContract declared, OpKind op, const ContractTraits& traits) {
  const std::vector<RoundingContract> all = contracts_of(op, traits);
  const auto has = [&](RoundingContract one) { return std::ranges::count(all, one) > 0; };
  if (has(declared)) return declared;
  constexpr RoundingContract kAsHf[] = {eager, hf_unrounded_sum, query_rounded,
                                        eager_query_rounded};
  return std::ranges::count(kAsHf, declared) > 0 && has(hf) ? hf : fused;
}

std::vector<RoundingContract> Contracts::candidates(const Place& place,
                                                    const ContractTraits& traits) const {
  const auto declared = declared_.find(std::string(place.point->name));
  if (declared == declared_.end() || is_mutant(Mutant::tries_any_contract))
    return candidates_of(place.point->op, traits);
  return {meant_by(declared->second, place.point->op, traits)};
}

bool may_round_so(const NodeOutcome& outcome) {
  return outcome.tried && (!outcome.is_finding() || outcome.passes_on);
}

int64_t Contracts::OfPoint::nodes() const {
  int64_t nodes = 0;
  for (const auto& [layer, fits] : by_layer) nodes += fits.nodes;
  return nodes;
}

bool Contracts::OfPoint::fits_any(const Fits& fits) const {
  for (size_t c = 0; c < allowed; ++c)
    if (fits.fits(c)) return true;
  return false;
}

void Contracts::add(const Place& place, std::span<const RoundingContract> candidates,
                    std::span<const NodeOutcome> outcomes) {
  if (candidates.size() < 2) return;
  OfPoint& of = points_[place.point->order()];
  of.point = place.point;
  of.candidates.assign(candidates.begin(), candidates.end());
  of.allowed = candidates.size();
  Fits& fits = of.by_layer[place.layer];
  fits.fitting.resize(candidates.size());
  fits.misfit.resize(candidates.size());
  of.out.resize(candidates.size());
  fits.unstored.resize(candidates.size());
  ++fits.nodes;
  for (size_t c = 0; c < outcomes.size(); ++c) {
    if (may_round_so(outcomes[c])) ++fits.fitting[c];
    if (outcomes[c].tried && outcomes[c].reads_unstored) fits.unstored[c] = true;
  }
  of.put_out();
}

// A candidate that fails in several layers and in more than half of those seen is tried no more,
// unless no other is left: each costs a judgement.
void Contracts::OfPoint::put_out() {
  std::vector<size_t> failing(candidates.size());  // layers
  for (const auto& [layer, fits] : by_layer)
    for (size_t c = 0; c < candidates.size(); ++c) failing[c] += fits.fitting[c] < fits.nodes;
  if (std::ranges::count(failing, 0u) == 0) return;
  for (size_t c = 0; c < candidates.size(); ++c)
    if (failing[c] >= kFailingLayers && 2 * failing[c] > by_layer.size()) out[c] = true;
}

bool Contracts::is_out(const Place& place, size_t candidate) const {
  const auto of = points_.find(place.point->order());
  if (of == points_.end() || candidate >= of->second.out.size() || !of->second.out[candidate])
    return false;
  // A bug of many layers must not choose for the others.
  const Point* bound = bound_of(*place.point);
  const bool is_of_shares =
      place.point->is_of_shares() || (bound && points_.contains(bound->order()));
  if (candidate == 0 && is_of_shares) return false;
  const auto layer = of->second.by_layer.find(place.layer);
  return layer == of->second.by_layer.end() || !layer->second.fits(candidate);
}

RoundingContract Contracts::first_tried(const Place& place, const ContractTraits& traits) const {
  const std::vector<RoundingContract> all = candidates(place, traits);
  if (all.size() == 1) return stricter_of(all.front());
  for (size_t c = 0; c < all.size(); ++c)
    if (!is_out(place, c)) return all[c];
  return all.front();
}

void Contracts::add_misfit(const Place& place, size_t candidate) {
  const auto of = points_.find(place.point->order());
  if (of == points_.end() || !of->second.by_layer.contains(place.layer)) return;
  of->second.by_layer[place.layer].misfit.at(candidate) = true;
}

// Those that are no looser than what attn.partial was found to be, or is declared. It says nothing
// where all of its layers are wrong.
size_t Contracts::allowed(const OfPoint& of) const {
  const size_t all = of.candidates.size();
  const Point* bound = bound_of(*of.point);
  if (!bound) return all;
  std::optional<RoundingContract> contract;
  if (const auto tried = points_.find(bound->order()); tried != points_.end()) {
    const OfPoint& shares = tried->second;
    // A pass that shows no shares, such as a prompt's, may be of another kernel.
    if (shares.nodes() < of.nodes()) return all;
    if (std::ranges::any_of(shares.by_layer,
                            [&](const auto& layer) { return shares.fits_any(layer.second); }))
      contract = shares.candidates[shares.chosen];
  } else if (const auto declared = declared_.find(std::string(bound->name));
             declared != declared_.end()) {
    contract = declared->second;
  }
  const auto found = contract ? std::ranges::find(of.candidates, *contract) : of.candidates.end();
  return found == of.candidates.end() ? all : found - of.candidates.begin() + 1;
}

// By vote of the layers: one kernel computes a point in all of them, and a layer with a bug is
// outvoted.
void Contracts::OfPoint::decide() {
  // Places first; where all of them are bugs, single nodes.
  std::vector<std::pair<int64_t, int64_t>> votes(allowed);
  int64_t voting = 0;
  for (const auto& [layer, fits] : by_layer) {
    voting += fits_any(fits) ? 1 : 0;
    for (size_t c = 0; c < allowed; ++c) {
      votes[c].first += fits.fits(c) ? 1 : 0;
      votes[c].second += fits.fitting[c];
    }
  }
  const auto most = [&](const auto& vote) { return 2 * vote.first > voting; };
  auto best = point->is_of_shares() ? std::ranges::find_if(votes, most) : votes.end();
  if (best == votes.end()) best = std::ranges::max_element(votes);
  chosen = best - votes.begin();
  if (!reads_unstored(chosen)) return;
  const size_t loose = chosen;
  for (size_t c = allowed; c-- > 0;)
    if (!reads_unstored(c) && outdoes(c, loose)) chosen = c;
}

bool Contracts::OfPoint::reads_unstored(size_t candidate) const {
  return std::ranges::any_of(
      by_layer, [candidate](const auto& layer) { return layer.second.unstored[candidate]; });
}

bool Contracts::OfPoint::outdoes(size_t candidate, size_t other) const {
  int64_t layers = 0, fitting = 0;
  for (const auto& [layer, fits] : by_layer) {
    if (!fits.unstored[other] || !fits_any(fits)) continue;
    ++layers;
    fitting += fits.fits(candidate) ? 1 : 0;
  }
  return 2 * fitting > layers;
}

// In the order of the table, so that attn.partial comes before those that it bounds.
void Contracts::decide() {
  for (auto& [order, of] : points_) {
    of.allowed = allowed(of);
    of.decide();
  }
}

// A layer that the chosen one does not fit, and another does, is judged by that one, and reported
// (inconsistent_layers). Not one of shares, nor by one that reads what was not stored where the
// others do not: what it fits is wide enough for most wrong numbers, and they say more.
size_t Contracts::chosen(const Place& place) const {
  const auto of = points_.find(place.point->order());
  if (of == points_.end()) return 0;
  const OfPoint& point = of->second;
  const auto found = point.by_layer.find(place.layer);
  if (found == point.by_layer.end()) return 0;
  const Fits& fits = found->second;
  if (fits.fits(point.chosen) || place.point->is_of_shares()) return point.chosen;
  for (size_t c = 0; c < point.allowed; ++c)
    if (fits.fits(c) && (!fits.unstored[c] || point.reads_unstored(point.chosen))) return c;
  return point.chosen;
}

std::vector<std::pair<const Point*, std::string>> Contracts::divided() const {
  std::vector<std::pair<const Point*, std::string>> all;
  for (const auto& [order, of] : points_) {
    // Norms have a rule of their own for what they read, of which the first layer's is stored more
    // often than that of others: what fits these says little about it.
    if (of.point->op == OpKind::norm) continue;
    for (size_t c = 0; c < of.chosen; ++c) {
      std::vector<int> stricter, others;
      for (const auto& [layer, fits] : of.by_layer)
        if (of.fits_any(fits)) (fits.fits(c) ? stricter : others).push_back(layer);
      const bool in_doubt = of.point->is_of_shares() ? stricter.size() == others.size()
                                                     : stricter.size() > others.size();
      if (stricter.empty() || others.empty() || !in_doubt) continue;
      const std::string_view name = of.point->name;
      const char *wide = name_of(of.candidates[of.chosen]), *strict = name_of(of.candidates[c]);
      all.emplace_back(of.point,
                       fmt::format("{} rounds as {} in layers {}, and as {} in layers {}: "
                                   "one kernel rounds in one way, and "
                                   "the layers judged do not say which; --rounding {}={} "
                                   "shows what is wrong if it is that",
                                   name, strict, fmt::join(stricter, ", "), wide,
                                   fmt::join(others, ", "), name, strict));
      break;
    }
  }
  return all;
}

RoundingContract Contracts::of(const Point& point) const {
  const auto of = points_.find(point.order());
  if (of != points_.end()) return of->second.candidates[of->second.chosen];
  const auto declared = declared_.find(std::string(point.name));
  return declared == declared_.end() ? fused : declared->second;
}

std::vector<std::pair<const Point*, RoundingContract>> Contracts::found() const {
  std::vector<std::pair<const Point*, RoundingContract>> found;
  for (const auto& [order, of] : points_) found.emplace_back(of.point, of.candidates[of.chosen]);
  return found;
}

std::vector<std::pair<Place, std::string>> Contracts::inconsistent_layers() const {
  std::vector<std::pair<Place, std::string>> all;
  for (const auto& [order, of] : points_)
    for (const auto& [layer, fits] : of.by_layer) {
      const Place place{of.point, layer};
      const size_t own = chosen(place);
      if (own == of.chosen) continue;
      all.emplace_back(
          place, fmt::format("it rounds as {} and the others of its point as {}: one kernel rounds "
                             "in one way",
                             name_of(of.candidates[own]), name_of(of.candidates[of.chosen])));
    }
  return all;
}

}  // namespace lockstep
