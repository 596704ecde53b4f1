// Every rank computes every pass; rank 0 receives what the others showed of it once its own is
// done, and they wait for it in the first collective of the next.
#include "src/session/ranked.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

#include "kernels/base/printable.h"
#include "src/session/collectives_library.h"
#include "src/weights/qwen_graph.h"

namespace lockstep {

Ranked::Ranked(const Checkpoint& whole, RankSeat& seat)
    : whole_(whole),
      seat_(seat),
      plan_(plan_of(whole.config(), seat.rank(), seat.ranks())),
      cut_(plan_),
      parts_{.plan = plan_} {
  CollectivesLibrary& library = open_collectives();
  seat.does(RankDoes::meets);
  Meeting meeting{.rank = seat.rank(), .ranks = seat.ranks()};
  if (seat.rank() == 0)
    meeting.opened = [&seat](int port) { seat.tell_port(port); };
  else
    meeting.port = seat.port();
  collectives_ = library.meet(meeting);
  seat.does(RankDoes::loads);
  agreed_.emplace(*collectives_, [&seat](const CollectiveCall* call) { seat.waits_in(call); });
  parts_.exchange = agreed_->table();
}

Graph Ranked::graph() const { return qwen_graph_of(whole_.config(), /*over_ranks=*/true); }

std::unique_ptr<Engine> Ranked::engine(Ops ops, EngineOptions options, Engine::Hooks hooks) {
  shard_.emplace(whole_, cut_);
  options.make_executor = [this](const PassParts& pass) -> std::unique_ptr<LayerExecutor> {
    seat_.in_pass(pass.batch.info.pass);
    seat_.does(RankDoes::computes);
    return std::make_unique<RankExecutor>(pass, parts_);
  };
  auto engine =
      std::make_unique<Engine>(shard_->checkpoint(), std::move(ops), options, std::move(hooks));
  return engine;
}

// The places that are judged, and those that an audit of the cache looks at.
RankRecorder::Wants Ranked::wants(const Selection& selection) const {
  std::set<std::pair<int, int>> places;
  for (const Place& place : graph().places_to_judge(selection))
    places.emplace(place.point->order(), place.layer);
  return [places = std::move(places), &seat = seat_](const Point& point, int layer) {
    seat.beat();  // an op is done
    const bool audited = point.is_cache() || point == lockstep::point("attn.k_rope") ||
                         point == lockstep::point("attn.v");
    return audited || places.contains({point.order(), layer});
  };
}

void Ranked::serve(Engine& engine, const Selection& selection) {
  RankRecorder recorder(plan_, wants(selection), [this](const RankPass& pass) {
    seat_.does(RankDoes::waits);
    collectives_->send(bytes_of(pass), 0);
    seat_.does(RankDoes::computes);
  });
  Probe probe(&recorder);
  try {
    while (engine.step(probe)) check(probe.failure().empty(), "{}", probe.failure());
  } catch (const RanksParted&) {
    return;  // rank 0 says it
  }
  seat_.does(RankDoes::waits);
  collectives_->receive(0);
}

std::unique_ptr<Oracle> Ranked::oracle(std::unique_ptr<Oracle> whole) {
  auto made = std::make_unique<RankOracle>(std::move(whole), whole_.config(), seat_.ranks());
  oracle_ = made.get();
  return made;
}

Sink& Ranked::sink(Sink& seen, const Selection& selection) {
  recorder_.emplace(plan_, wants(selection),
                    [this, &seen](RankPass pass) { take(std::move(pass), seen); });
  return *recorder_;
}

void Ranked::take(RankPass own, Sink& seen) {
  std::vector<RankPass> passes;
  passes.push_back(std::move(own));
  seat_.does(RankDoes::waits);
  for (int rank = 1; rank < seat_.ranks(); ++rank)
    passes.push_back(rank_pass_from(collectives_->receive(rank)));
  seat_.does(RankDoes::judges);
  joined_ = join(std::move(passes));
  ++passes_;
  apart_.insert(apart_.end(), joined_.apart.begin(), joined_.apart.end());
  if (oracle_) oracle_->begin_pass(&joined_);
  seen.begin(joined_.info);
  for (const RankTensor& tensor : joined_.tensors)
    if (seen.wants(*tensor.point, tensor.layer))
      seen.record({tensor.point, tensor.layer, tensor.rows, tensor.data});
  seen.end();
  seat_.does(RankDoes::computes);
}

void Ranked::describe(Manifest& manifest) const {
  manifest.graph = graph();
  for (const Place& place : manifest.graph.places())
    manifest.contracts[std::string(place.point->name)] = RoundingContract::fused;
  manifest.provenance["ranks"] = std::to_string(seat_.ranks());
  manifest.provenance["collectives"] = open_collectives().name();
}

void Ranked::part(const RanksParted& parted) {
  parted_ = true;
  const Point& point = kPoints.at(static_cast<size_t>(parted.call.point));
  const int layer = static_cast<int>(parted.call.layer);
  apart_.push_back({.node = {.place = {&point, layer}, .pass = static_cast<int32_t>(passes_)},
                    .verdict = Verdict::structural,
                    .rule = fmt::format("{}, so that no rank can go on", parted.what())});
}

void Ranked::put_into(Result& result) {
  for (Finding& finding : result.findings)
    if (const std::string rank = rank_text(finding, whole_.config(), seat_.ranks()); !rank.empty())
      finding.rule = rank + (finding.rule.empty() ? "" : "; " + finding.rule);
  if (result.first)
    for (const Finding& finding : result.findings)
      if (finding.node == result.first->node) result.first->rule = finding.rule;
  add_apart(result, apart_, graph());
  result.notes.push_back(fmt::format(
      "{} ranks made the same {} calls of collectives in the same order, {} bytes each; what all "
      "of them have was compared bit by bit in {} passes",
      seat_.ranks(), agreed_->calls(), agreed_->bytes(), passes_));
  if (parted_) return;
  for (int rank = 1; rank < seat_.ranks(); ++rank) collectives_->send({}, rank);
}

int ranks_of(const Manifest& manifest) {
  const auto found = manifest.provenance.find("ranks");
  if (found == manifest.provenance.end()) return 1;
  const std::string& text = found->second;
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  check(error == std::errc() && end == text.data() + text.size() && ranks >= 1 && ranks <= 64,
        "the trace says that it was made over '{}' ranks: 1 to 64 were wanted", shown(text));
  return ranks;
}

}  // namespace lockstep
