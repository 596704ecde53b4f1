// Searching is dear, as dozens of hypotheses are computed in fp64 and some in several sizes, so it
// is rationed: a place is searched at its first findings, a point a few times in all, and a
// hypothesis that explained one layer is tried first in the next. Most are ruled out by a few of
// the wrong rows. Candidates are then held against the later wrong nodes of their place, and the
// sums over all of them decide.
#include "src/causes/causes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "src/causes/evidence.h"
#include "src/judge/ledger.h"

namespace lockstep {
namespace {

// Passes of a place that are searched when those before had no explanation; and searches at a
// point, whose later places are first held against what explained earlier ones. Passes of a place
// that are looked at.
constexpr int kMostSearches = 2, kMostPlaces = 4;
// Wrong elements without an explanation after which a place is not searched again: they count
// against whatever a later pass may suggest (best_causes).
constexpr int64_t kEnough = 1000;
constexpr int64_t kMostPasses = 256;
// Wrong elements of what is taken for an op of another contract: two guesses fit a few by chance.
constexpr int64_t kLeastAsHf = 64;
// Places in whose regions causes are searched for.
constexpr int kMostRegions = 2;
// Passes in which a place with an explanation is right: a few refute one of all rows.
constexpr int64_t kMostRightPasses = 16;
constexpr double kNearer = 0.98;
// Said of a place at most, where several explain it equally well; and how many are kept.
constexpr size_t kMostSaid = 3, kMostKept = 8;
// Values of one way that are said each; of more, that there are more.
constexpr int kMostValues = 2;

// The distances of two that are equally good differ by chance alone. A mean over n elements is
// known to about 1 / sqrt(n) of itself; three of these are allowed.
double much_as_good(double distance, int64_t elements) {
  return distance * (1 + 3 / std::sqrt(std::max<int64_t>(1, elements)));
}

// A hypothesis that is no nearer than what is right explains nothing. Where few elements are over
// their budgets, the rounding of all others makes up most of both distances.
bool is_nearer(const Fit& fit) { return fit.squares < kNearer * fit.right_squares; }

std::string more_ways(size_t count) {
  return fmt::format(" (and {} more {} as well)", count, count == 1 ? "way fits" : "ways fit");
}

}  // namespace

Causes::Causes(const Manifest& manifest, const Judge& judge, Oracle& oracle, Hypotheses& hypotheses,
               Progress progress)
    : manifest_(manifest),
      judge_(judge),
      oracle_(oracle),
      hypotheses_(hypotheses),
      progress_(std::move(progress)) {}

void Causes::add(const Pass& pass, std::span<const NodeId> flags) {
  add(pass, flags, [](const Place&) { return true; });
}

void Causes::add(const Pass& pass, std::span<const NodeId> flags,
                 const std::function<bool(const Place&)>& judged) {
  std::vector<std::pair<Place, std::set<int32_t>>> wrong;
  for (const NodeId& flag : flags) {
    auto at = std::ranges::find(wrong, flag.place, [](const auto& w) { return w.first; });
    if (at == wrong.end()) at = wrong.insert(at, {flag.place, {}});
    at->second.insert(flag.request);
  }
  // Places that have an explanation are also held to it in passes in which they are right: a cause
  // that would make these wrong is none.
  for (auto& [key, of] : places_) {
    const Place place{&kPoints[key.first], key.second};
    if ((of.candidates.empty() && of.in_region.empty()) || of.right_passes >= kMostRightPasses ||
        !judged(place))
      continue;
    if (std::ranges::count(wrong, place, [](const auto& w) { return w.first; }) > 0) continue;
    ++of.right_passes;
    wrong.push_back({place, {}});
  }
  if (wrong.empty()) return;
  const Pass seen = narrowed(pass, manifest_.dtype);
  for (const auto& [place, requests] : wrong) add(seen, place, requests);
}

bool Causes::is_right_as_fused(const Place& place) const {
  return judge_.right_as(place) == RoundingContract::fused && judge_.region_of(place).empty();
}

void Causes::tell_of(const Place& place) const {
  if (progress_)
    progress_(fmt::format("looking for what {} looks like in", place.point->name), place.layer);
}

bool Causes::may_search(const Place& place) const {
  const auto searched = searched_.find(place.point->order());
  return searched == searched_.end() || searched->second < kMostPlaces;
}

void Causes::add(const Pass& pass, const Place& place, const std::set<int32_t>& requests) {
  OfPlace& of = places_[{place.point->order(), place.layer}];
  if (place.point->is_cache() || row_of(place.point->op).makes_indices) {
    if (of.passes++ < kMostPasses)
      add_exact(exact_nodes(pass, place, requests, manifest_, judge_), of);
    return;
  }
  if (const std::vector<Place> hidden = judge_.region_of(place); !hidden.empty()) {
    if (place.point->is_of_shares()) return;  // behind what is hidden, shares are not asked about
    add_in_region(pass, place, hidden, requests);
    return;
  }
  const bool searches = of.candidates.empty();
  const bool tried = of.searches >= kMostSearches || of.unexplained.of_elements >= kEnough;
  if (of.passes >= kMostPasses || (searches && tried)) return;
  const auto evidence_as = [&](RoundingContract contract) {
    return Evidence::of(pass, place, requests, contract, manifest_, judge_, oracle_);
  };
  const RoundingContract own = judge_.contract_at(place);
  const auto evidence = evidence_as(of.taken_as.value_or(own));
  if (!evidence) return;
  ++of.passes;
  of.kinds.merge(evidence->wrong_kinds());
  if (searches) {
    search(
        *evidence, [&] { return evidence_as(RoundingContract::hf); }, of);
    return;
  }
  OpInPass op = evidence->op;
  op.call.contract = of.candidates.front().contract;
  const auto asked = hypotheses_.of(op);
  for (Candidate& candidate : of.candidates) {
    Numbers numbers = asked->evaluate(candidate.guess);
    if (numbers.empty()) continue;
    if (candidate.part) numbers = evidence->within(*candidate.part, numbers);
    candidate.fit.add(evidence->fit(numbers, of.kinds));
  }
}

// Dearer still, as each guess runs through a chain: one search of a place, and of few places.
void Causes::add_in_region(const Pass& pass, const Place& place, const std::vector<Place>& hidden,
                           const std::set<int32_t>& requests) {
  OfPlace& of = places_[{place.point->order(), place.layer}];
  const bool searches = of.in_region.empty(), is_new = searches && of.searches == 0;
  if (is_new && regions_ == kMostRegions) left_out_.insert({place.point->order(), place.layer});
  if (of.passes >= kMostPasses || (searches && (!is_new || regions_ == kMostRegions))) return;
  const auto region =
      RegionInPass::of(pass, place, hidden, requests, manifest_, judge_, oracle_, hypotheses_);
  if (!region) return;
  ++of.passes;
  if (!searches) {
    for (RegionCandidate& candidate : of.in_region)
      if (const std::optional<Fit> fit = region->fit(candidate.tried.guess))
        candidate.tried.fit.add(*fit);
    return;
  }
  ++of.searches, ++regions_;
  for (RegionInPass::Tried& tried : region->search([&] { tell_of(place); })) {
    if (!is_nearer(tried.fit)) continue;
    const bool own = tried.places.back() == place;
    std::vector<std::string_view> names;
    for (const Place& one : tried.places) names.push_back(one.point->name);
    std::string says = fmt::format("{} in {}", tried.says, fmt::join(names, " and "));
    if (!own)
      says += fmt::format(", hidden in the region {} .. {}", hidden.front().point->name,
                          place.point->name);
    of.in_region.push_back({std::move(tried), std::move(says)});
  }
}

// A bug may have changed where the op rounds as well. So one that is declared to round on the way
// is also taken for one that rounds once. What is right then is as good an explanation as any bug
// that comes no nearer. And one that is to round once may be a kernel of the usual chain, of which
// nobody said so: it is held to what that may round.
void Causes::search(const Evidence& evidence, const EvidenceAsHf& evidence_as_hf, OfPlace& of) {
  const Place& place = evidence.op.call.place;
  const bool all = may_search(place);
  ++of.searches;
  const Numbers right_once = evidence.right_once(oracle_);
  Fit none;
  for (const bool once : {false, true}) {
    OpInPass op = evidence.op;
    if (once && op.call.contract == RoundingContract::fused) continue;
    if (once) op.call.contract = RoundingContract::fused;
    none = search(evidence, op, right_once, all, of);
    if (!of.candidates.empty()) break;
  }
  const bool fused = evidence.op.call.contract == RoundingContract::fused;
  const bool may_be_hf = fused && of.right_as_hf < kMostSearches;
  if (const auto as_hf = of.candidates.empty() && may_be_hf ? evidence_as_hf() : nullptr) {
    const int point = place.point->order();
    if (as_hf->unexplained().of_elements < kLeastAsHf) {
      --of.searches, ++of.right_as_hf;  // a later pass may show what is wrong with it
      if (all) --searched_[point];
      if (!all) left_out_.insert({point, place.layer});
      return;
    }
    // How a kernel rounds is the same in all layers, and this is as dear as the search before.
    const bool once = all && !searched_as_hf_.contains(point);
    search(*as_hf, as_hf->op, as_hf->right_once(oracle_), once, of);
    if (once && of.candidates.empty()) searched_as_hf_.insert(point);
    if (!of.candidates.empty()) {  // what was counted is of another contract
      of.taken_as = RoundingContract::hf;
      of.unexplained = {};
      of.kinds = as_hf->wrong_kinds();
    }
  }
  if (of.candidates.empty()) {
    of.unexplained.add(none);
    if (!all) left_out_.insert({place.point->order(), place.layer});
    return;
  }
  std::ranges::stable_sort(of.candidates, {}, [](const Candidate& c) { return c.fit.distance(); });
  if (of.candidates.size() > kMostKept) of.candidates.resize(kMostKept);
  std::vector<Guess>& known = known_[place.point->order()];
  for (const Candidate& candidate : of.candidates)
    if (std::ranges::count(known, candidate.guess) == 0) known.push_back(candidate.guess);
}

// Returns what there was to explain.
Fit Causes::search(const Evidence& evidence, const OpInPass& op, const Numbers& right_once,
                   bool may_search_all, OfPlace& of) {
  const auto asked = hypotheses_.of(op);
  const Fit none = try_guesses(known_[op.call.place.point->order()], *asked, evidence,
                               op.call.contract, right_once, of);
  if (!of.candidates.empty() || !may_search_all) return none;
  const Place& place = op.call.place;
  if (op.call.contract == judge_.contract_at(place)) ++searched_[place.point->order()];
  return try_guesses(asked->guesses(), *asked, evidence, op.call.contract, right_once, of);
}

// Two may differ elsewhere alone, as in columns that are right: then the plainer one is said.
bool Causes::is_same(const Candidate& a, const Candidate& b) {
  return !a.part->columns.empty() && a.part->says == b.part->says &&
         std::fabs(a.fit.squares - b.fit.squares) <= 1e-9 * a.fit.squares;
}

Fit Causes::try_guesses(std::span<const Guess> guesses, OpHypotheses& asked,
                        const Evidence& evidence, RoundingContract contract,
                        const Numbers& right_once, OfPlace& of) const {
  Fit none = evidence.unexplained();
  const std::vector<WrongPart> parts = evidence.wrong_parts();
  // Whether a fit is nearer than what is right, there, however it is said to round. Where that is
  // right but for some elements, these are what a cause must explain.
  const auto is_nearer_there = [&](const Fit& fit, const WrongPart* part) {
    if (!is_nearer(fit) || right_once.empty()) return is_nearer(fit);
    const Numbers once = part ? evidence.within(*part, right_once) : right_once;
    const Fit right = evidence.fit(once, of.kinds);
    return fit.squares < kNearer * right.squares && fit.explains_beyond(right);
  };
  // A bug of the last tile or of one head is a known way there, and right elsewhere. The least
  // narrow part in which it holds is said.
  std::vector<Candidate> in_part;  // which are none if one explains all of it
  for (const Guess& guess : guesses) {
    tell_of(evidence.op.call.place);
    const Numbers few = asked.evaluate_few(guess);
    if (!few.empty() && !evidence.may_explain(few)) continue;
    const Numbers numbers = asked.evaluate(guess);
    if (numbers.empty() || !evidence.may_explain(numbers)) continue;
    const Fit fit = evidence.fit(numbers, of.kinds);
    // Hypotheses see the same nodes; of_elements may differ with the unit that each sets, and the
    // most counts against all.
    none.of_elements = std::max(none.of_elements, fit.of_elements);
    for (size_t p = 0; p < parts.size() && !fit.explains(); ++p) {
      if (parts[p].of_rows && asked.picks_rows(guess)) continue;
      const Fit there = evidence.fit(evidence.within(parts[p], numbers), of.kinds);
      if (!there.explains() || !is_nearer_there(there, &parts[p])) continue;
      const Candidate found{guess, contract, asked.says(guess) + parts[p].says,
                            there, parts[p], asked.is_general(guess)};
      if (std::ranges::none_of(in_part, [&](const Candidate& c) { return is_same(c, found); }))
        in_part.push_back(found);
      break;
    }
    if (!fit.explains() || !is_nearer_there(fit, nullptr)) continue;
    // A parameter that was searched for may be a usual one but for its last bit.
    const std::string says = asked.says(guess);
    if (std::ranges::count(of.candidates, says, &Candidate::says) == 0)
      of.candidates.push_back({guess, contract, says, fit, std::nullopt, asked.is_general(guess)});
  }
  if (std::ranges::all_of(of.candidates, &Candidate::is_general))
    std::ranges::move(in_part, std::back_inserter(of.candidates));
  return none;
}

void Causes::add_exact(const std::vector<ExactNode>& nodes, OfPlace& of) {
  for (const ExactNode& node : nodes) {
    of.all.of_elements += node.wrong;
    ++of.all.of_nodes;
    for (const ExactNode::Cause& cause : node.causes) {
      Fit& fit = of.exact[cause.says];
      fit.elements += cause.explained;
      fit.nodes += cause.explained == node.wrong ? 1 : 0;
    }
  }
}

std::vector<Finding::LooksLike> Causes::exact_causes(const OfPlace& of) {
  std::vector<Finding::LooksLike> all;
  for (const auto& [says, fit] : of.exact) {
    Fit whole = fit;
    whole.of_elements = of.all.of_elements;
    if (whole.explains() && all.size() < kMostSaid)
      all.push_back({says, fit.elements, of.all.of_elements, fit.nodes, of.all.of_nodes});
  }
  return all;
}

// Those that are as near as the nearest, the plainest first (Guess::number).
std::vector<Causes::Candidate> Causes::best_causes(const OfPlace& of) {
  std::vector<Candidate> good;
  for (Candidate candidate : of.candidates) {
    candidate.fit.add(of.unexplained);
    if (candidate.fit.explains() && is_nearer(candidate.fit)) good.push_back(candidate);
  }
  if (good.empty()) return {};
  const auto distance = [](const Candidate& c) { return c.fit.distance(); };
  const Candidate& best = *std::ranges::min_element(good, {}, distance);
  const double most = much_as_good(distance(best), best.fit.counted);
  std::erase_if(good, [&](const Candidate& c) { return distance(c) > most; });
  // One that would have made right nodes wrong too is no equal of one that leaves them as they are.
  if (std::ranges::count(good, 0, [](const Candidate& c) { return c.fit.refuting; }) > 0)
    std::erase_if(good, [](const Candidate& c) { return c.fit.refuting > 0; });
  if (!std::ranges::all_of(good, &Candidate::is_general))
    std::erase_if(good, &Candidate::is_general);
  std::ranges::stable_sort(good, {}, [](const Candidate& c) { return c.guess.number; });
  return good;
}

// Several values of one way that fit equally well do not tell the value, and several ways do not
// tell the way: none is said as if it were the only one. Whatever makes NaN in the same rows fits
// where nothing but NaN was stored.
std::vector<Finding::LooksLike> Causes::in_words(std::vector<Candidate> good) {
  std::map<int, int> values;  // by way
  for (const Candidate& c : good) ++values[c.guess.number];
  std::set<int> said;
  std::erase_if(good, [&](const Candidate& c) {
    return !said.insert(c.guess.number).second && values[c.guess.number] > kMostValues;
  });
  std::vector<Finding::LooksLike> all;
  for (const Candidate& c : good) {
    if (all.size() == kMostSaid) break;
    std::string says = c.says;
    if (const int of = values[c.guess.number]; of > kMostValues)
      says += fmt::format(" (or another of {} values that fit as well)", of);
    if (c.fit.numbers == 0) says += ", or whatever else makes NaN there";
    all.push_back({says, c.fit.elements, c.fit.of_elements, c.fit.nodes, c.fit.of_nodes});
  }
  if (good.size() > kMostSaid) all.back().says += more_ways(good.size() - kMostSaid);
  return all;
}

// The plainest of each op, or of each few siblings, of those that explain all equally well; none
// where these are more than can be said.
std::vector<Finding::LooksLike> Causes::region_causes(const OfPlace& of) {
  std::vector<RegionCandidate> good;
  for (const RegionCandidate& candidate : of.in_region)
    if (candidate.tried.fit.explains() && is_nearer(candidate.tried.fit)) good.push_back(candidate);
  if (good.empty()) return {};
  const auto distance = [](const RegionCandidate& c) { return c.tried.fit.distance(); };
  const RegionCandidate best = *std::ranges::min_element(good, {}, distance);
  const double most = much_as_good(distance(best), best.tried.fit.counted);
  std::erase_if(good, [&](const RegionCandidate& c) { return distance(c) > most; });
  std::vector<Finding::LooksLike> all;
  std::map<std::vector<size_t>, size_t> ways;  // by op
  for (const RegionCandidate& c : good) ++ways[c.tried.guess.ops];
  std::set<std::vector<size_t>> said;
  for (const RegionCandidate& c : good) {
    if (!said.insert(c.tried.guess.ops).second) continue;
    const Fit& fit = c.tried.fit;
    const size_t others = ways[c.tried.guess.ops] - 1;
    std::string says = c.says;
    if (others > 0) says += more_ways(others);
    all.push_back({says, fit.elements, fit.of_elements, fit.nodes, fit.of_nodes});
  }
  if (all.size() > kMostSaid) all.clear();
  return all;
}

// Where several fit one place equally well, one that is the only one elsewhere is meant: a kernel
// has its bug at each place that it serves.
void Causes::put_best_into(Result& result) const {
  std::map<const PlaceSummary*, std::vector<Candidate>> good;
  std::map<OpKind, std::vector<Guess>> only;
  for (const PlaceSummary& summary : result.places) {
    const auto found = places_.find({summary.place.point->order(), summary.place.layer});
    if (found == places_.end() || !is_finding(summary.verdict)) continue;
    // An op that is right but for the rounding that it declares computes nothing wrong: hypotheses
    // that come out as it does are none of its bugs.
    if (is_right_as_fused(summary.place)) continue;
    std::vector<Candidate> best = best_causes(found->second);
    if (best.size() == 1) only[summary.place.point->op].push_back(best.front().guess);
    good[&summary] = std::move(best);
  }
  for (PlaceSummary& summary : result.places) {
    const auto found = good.find(&summary);
    if (found == good.end()) continue;
    std::vector<Candidate>& all = found->second;
    const std::vector<Guess>& told = only[summary.place.point->op];
    const auto is_told = [&](const Candidate& c) { return std::ranges::count(told, c.guess) > 0; };
    if (std::ranges::any_of(all, is_told))
      std::erase_if(all, [&](const Candidate& c) { return !is_told(c); });
    summary.looks_like = in_words(std::move(all));
  }
}

// A reader takes it that nothing known explains a place of which nothing is said.
void Causes::note_left_out(Result& result) const {
  const PlaceSummary* first = nullptr;
  int places = 0;
  for (const PlaceSummary& p : result.places) {
    const bool left_out = left_out_.contains({p.place.point->order(), p.place.layer});
    if (!left_out || !is_finding(p.verdict) || !p.looks_like.empty()) continue;
    if (is_right_as_fused(p.place)) continue;
    if (places++ == 0) first = &p;
  }
  if (places == 0) return;
  result.notes.push_back(fmt::format(
      "what {} looks like was not searched for{}: that is done at {} places of a point at most, "
      "and at {} in all whose ops read what was not recorded; --layers and --points choose others",
      text_of(first->place),
      places > 1 ? fmt::format(", nor {} more wrong place{}", places - 1, places > 2 ? "s" : "")
                 : "",
      kMostPlaces, kMostRegions));
}

void Causes::put_into(Result& result) const {
  put_best_into(result);
  for (PlaceSummary& summary : result.places) {
    const Place& place = summary.place;
    const auto found = places_.find({place.point->order(), place.layer});
    if (found == places_.end() || !is_finding(summary.verdict)) continue;
    if (!found->second.exact.empty())
      summary.looks_like = exact_causes(found->second);
    else if (!found->second.in_region.empty())
      summary.looks_like = region_causes(found->second);
  }
  note_left_out(result);
  if (const std::string trouble = hypotheses_.trouble(); !trouble.empty())
    result.notes.push_back("why ops are wrong was not looked into as it should be: " + trouble);
}

}  // namespace lockstep
