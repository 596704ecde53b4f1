// Every rank computes every pass; rank 0 receives what the others showed of it once its own is
// done, and they wait for it in the first collective of the next.
#include "src/session/ranked.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <set>

#include "kernels/base/printable.h"
#include "src/session/collectives_library.h"
#include "src/session/device.h"
#include "src/weights/qwen_graph.h"

namespace lockstep {

Ranked::Ranked(const Checkpoint& whole, RankSeat& seat, Brings brings)
    : whole_(whole),
      seat_(seat),
      device_(brings.device),
      plan_(plan_of(whole.config(), seat.rank(), seat.ranks())),
      cut_(plan_),
      copies_(whole.config(), seat.ranks()) {
  plan_.by_rows = brings.by_rows;
  parts_.plan = plan_;
  CollectivesLibrary& library = open_collectives(device_.kind);
  seat.does(RankDoes::meets);
  Meeting meeting{.rank = seat.rank(),
                  .ranks = seat.ranks(),
                  .gpu = number_of(device_),
                  .stream = stream_of(device_)};
  if (const Rendezvous* there = seat.elsewhere()) {
    meeting.host = there->host;
    meeting.port = there->port;
    meeting.hosted = there->hosted;
    meeting.name = there->name;
    meeting.patience = brings.patience;
    meeting.facts = std::move(brings.facts);
  } else if (seat.rank() == 0) {
    meeting.opened = [&seat](int port) { seat.tell_port(port); };
  } else {
    meeting.port = seat.port();
  }
  collectives_ = library.meet(meeting);
  seat.does(RankDoes::loads);
  // Ranks of one process have memory in common, by which they agree in a microsecond.
  TellCall tell = [&seat](const CollectiveCall& call) { return seat.tell(call); };
  if (seat.elsewhere()) tell = told_by(*collectives_);
  agreed_.emplace(*collectives_, tell,
                  [&seat](const CollectiveCall* call) { seat.waits_in(call); });
  parts_.exchange = agreed_->table();
}

Graph Ranked::graph() const { return qwen_graph_of(whole_.config(), /*over_ranks=*/true); }

std::unique_ptr<Engine> Ranked::engine(Ops ops, EngineOptions options, Engine::Hooks hooks) {
  check(ops.fused.of_user.empty(),
        "--tp computes one op at a time, found {} of --ops, which stand for several: leave one out",
        fmt::join(ops.fused.of_user, ", "));
  if (!shard_) shard_.emplace(whole_, cut_);
  options.over_ranks = true;
  options.exact_rows = plan_.by_rows;
  options.make_executor = [this](const PassParts& pass) -> std::unique_ptr<LayerExecutor> {
    agreed_->begin(pass.batch.info.pass, DeviceBatch::room_of(pass.batch));
    return std::make_unique<RankExecutor>(pass, parts_);
  };
  parts_.device = options.device;
  parts_.dtype = options.dtype;
  parts_.lookups.clear();
  hooks.before_pass = [this, inner = std::move(hooks.before_pass)](Batch& batch) {
    if (inner) inner(batch);
    seat_.in_pass(batch.info.pass);
    seat_.does(RankDoes::computes);
    prepare_lookup(parts_, batch);
  };
  hooks.before_replay = [this, inner = std::move(hooks.before_replay)](const Batch& batch) {
    if (inner) inner(batch);
    agreed_->replay(DeviceBatch::room_of(batch));
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

Sink& Ranked::recorded(std::function<void(RankPass)> finished, const Selection& selection,
                       const BaselineRows* base) {
  recorder_.emplace(plan_, wants(selection), std::move(finished));
  if (!base) return *recorder_;
  return put_.emplace(*recorder_, *base, plan_);
}

void Ranked::serve(Engine& engine, const Selection& selection, const BaselineRows* base) {
  const auto send = [this](const RankPass& pass) {
    seat_.does(RankDoes::waits);
    collectives_->send(bytes_of(pass), 0);
    seat_.does(RankDoes::computes);
  };
  Probe probe(&recorded(send, selection, base));
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

std::unique_ptr<Hypotheses> Ranked::hypotheses(std::unique_ptr<Hypotheses> whole) const {
  return std::make_unique<RankHypotheses>(std::move(whole), whole_.config(), seat_.ranks());
}

Sink& Ranked::sink(Sink& seen, const Selection& selection, const BaselineRows* base) {
  const auto taken = [this, &seen](RankPass pass) { take(std::move(pass), seen); };
  return recorded(taken, selection, base);
}

// Caches are in nobody's way: what was written into them is.
void Ranked::tell(const Pass* pass) {
  RankPass told;
  if (pass) {
    told.info = pass->info;
    for (const RecordedTensor& t : pass->tensors)
      if (!t.point->is_cache()) told.tensors.push_back({t.point, t.layer, t.rows, {}, t.data});
  }
  const std::vector<std::byte> bytes = pass ? bytes_of(told) : std::vector<std::byte>();
  for (int rank = 1; rank < seat_.ranks(); ++rank) collectives_->send(bytes, rank);
  seat_.does(RankDoes::judges);  // the others wait for as long as it computes alone
}

std::vector<RankPass> Ranked::hear() {
  std::vector<RankPass> passes;
  seat_.does(RankDoes::waits);
  for (std::vector<std::byte> bytes = collectives_->receive(0); !bytes.empty();
       bytes = collectives_->receive(0)) {
    passes.push_back(rank_pass_from(bytes));
    seat_.beat();
  }
  return passes;
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
  if (plan_.by_rows) rows_[joined_.info.pass] = joined_.info.rows;
  apart_.insert(apart_.end(), joined_.apart.begin(), joined_.apart.end());
  const auto wrong = copies_.judge(joined_, oracle_ ? &oracle_->whole() : nullptr);
  apart_.insert(apart_.end(), wrong.begin(), wrong.end());
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
  if (plan_.by_rows) manifest.provenance.emplace("sequence_parallel", "1");
  manifest.provenance["collectives"] = open_collectives(device_.kind).name();
}

void Ranked::part(const RanksParted& parted) {
  parted_ = true;
  const bool in_graph = parted.call.kind == CollectiveCall::Kind::graph;
  const Point& point =
      in_graph ? lockstep::point("embed") : kPoints.at(static_cast<size_t>(parted.call.point));
  const int layer = static_cast<int>(parted.call.layer);
  Finding finding{.node = {.place = {&point, layer}, .pass = static_cast<int32_t>(passes_)},
                  .verdict = Verdict::structural,
                  .rule = fmt::format("{}, so that no rank can go on", parted.what())};
  apart_.push_back({.finding = std::move(finding), .rank = parted.rank});
}

void Ranked::name_ranks(Result& result) const {
  for (Finding& finding : result.findings)
    name_rank(finding, whole_.config(), seat_.ranks(), rows_);
  if (result.first)
    for (const Finding& finding : result.findings)
      if (finding.node == result.first->node) result.first->rule = finding.rule;
}

void Ranked::end(Result& result) {
  add_apart(result, apart_, graph());
  result.notes.push_back(fmt::format(
      "{} ranks made the same {} calls of collectives in the same order, {} bytes each; what all "
      "of them have was compared bit by bit in {} passes",
      seat_.ranks(), agreed_->calls(), agreed_->bytes(), passes_));
  if (device_ != Device::cpu)
    result.notes.push_back(
        fmt::format("{} passes were replayed from CUDA graphs with the collectives in them",
                    agreed_->replays()));
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
