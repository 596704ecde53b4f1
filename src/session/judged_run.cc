// The order in which judge_run() puts things together matters: faults are seeded into the ops
// first, a watch stands around the faulty ops, and what is recorded before an op runs stands around
// all of it. Ops that are watched, or whose faults work on host memory, run on copies of their
// arguments in host memory. CUDA graphs are left out where any of this stands between the model and
// the device's own ops.
#include "src/session/judged_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/plugin/host_staging.h"
#include "probes/layer_watch.h"
#include "probes/only.h"
#include "probes/tee.h"
#include "src/audit/audit.h"
#include "src/causes/causes.h"
#include "src/session/device.h"
#include "src/session/judged_trace.h"
#include "src/session/live_judge.h"
#include "src/session/ranked.h"
#include "src/session/ranks_apart.h"
#include "src/session/run_progress.h"
#include "src/session/trace_capture.h"
#include "src/session/user_op_calls.h"

namespace lockstep {
namespace {

// A place that is not shown, as it lies within a user's fused op, is judged with those that read
// it. So what it is made of is needed, back to what is shown.
Only::Wanted wanted_to_judge(const Graph& graph, const JudgeOptions& judging) {
  std::vector<Place> all = graph.places_to_judge(judging.selection);
  std::set<std::pair<int, int>> places;
  for (size_t i = 0; i < all.size(); ++i) {
    const Place place = all[i];
    if (!places.emplace(place.point->order(), place.layer).second) continue;
    if (!judging.recorded || judging.recorded(place)) continue;
    for (const Place& input : graph.inputs_of(place)) {
      all.push_back(input);
      // The cache that a hidden attention reads is made of what was written.
      if (input.point->is_cache())
        std::ranges::copy(graph.inputs_of(input), std::back_inserter(all));
    }
  }
  return [places = std::move(places)](const Point& point, int layer) {
    return places.contains({point.order(), layer});
  };
}

std::string name_of_oracle(const ReferenceLibrary& reference, int gpu) {
  return fmt::format("LibTorch {} in fp64 on {}", reference.version(),
                     gpu < 0 ? "the CPU" : fmt::format("cuda:{}", gpu));
}

// A text that the engine forgot would be missed by nobody: its own list of requests is judged.
void check_served(const std::vector<Request>& asked, const std::vector<RequestInfo>& served) {
  int64_t texts = 0;
  for (const Request& request : asked) texts += request.samples;
  check(texts == std::ssize(served),
        "{} texts were asked for, but the engine served {}: what is missing was not judged", texts,
        served.size());
}

int64_t tokens_chosen(const Engine& engine) {
  int64_t chosen = 0;
  for (int32_t id = 0; id < engine.requests(); ++id)
    chosen += std::ssize(engine.sequence(id).argmax);
  return chosen;
}

bool needs_host(const FaultRequest& fault) {
  const Fault::Seat seat = fault_of(fault).seat;
  return seat == Fault::Seat::host || seat == Fault::Seat::ranks;
}

void check_faults(const JudgedRun& run, bool clean_ops) {
  check(
      run.faults.empty() || !run.engine.make_executor ||
          std::ranges::all_of(run.faults,
                              [](const FaultRequest& fault) {
                                return fault_of(fault).seat == Fault::Seat::instructions;
                              }),
      "--fault seeds into whole ops, found an --executor that calls none of them whole: leave one "
      "out, or edit the schedule of --executor instructions");
  for (const FaultRequest& fault : run.faults)
    check(fault_of(fault).seat != Fault::Seat::graphs || (run.engine.graph && clean_ops),
          "fault {} is one of graphs, and this run has none: add --device cuda, and leave out "
          "--graph off and faults of ops",
          fault.name);
}

}  // namespace

// Faults of kernels replace them on the device. Faults of the host or of ranks, and a watch, need
// the numbers in host memory: then every op is staged through it.
Seeded::Seeded(Ops of_device, const std::vector<FaultRequest>& faults, const ModelConfig& config,
               Device device, OpWatch* watch, const RankSeams* ranks, InterpreterOptions* step)
    : ops(std::move(of_device)), clean(!watch && std::ranges::none_of(faults, needs_host)) {
  check(faults.empty() || ops.fused.of_user.empty(),
        "--fault breaks single ops, found {} of --ops, which would be called in their places: "
        "leave one out",
        fmt::join(ops.fused.of_user, ", "));
  if (clean) {
    for (const FaultRequest& fault : faults)
      seed_fault({ops, hooks, config, broken_ops_of(device), ranks, step}, fault);
    return;
  }
  const bool on_device = device != Device::cpu;
  const Ops right = on_device ? staged_on(ops, device) : ops;
  ops = right;
  for (const FaultRequest& fault : faults) seed_fault({ops, hooks, config, nullptr, ranks}, fault);
  if (watch) watch->wrap(ops, right);
  if (on_device) ops = staged_on(ops, Device::cpu);
}

namespace {

// `flagged` keeps the numbers that a finding can be looked into with: its own and those it read.
bool is_kept(const RecordedTensor& tensor, TraceLevel level, const std::vector<NodeId>& flags,
             const Graph& graph) {
  if (level == TraceLevel::full && !tensor.point->is_cache()) return true;
  if (level != TraceLevel::full && level != TraceLevel::flagged) return false;
  const Place place{tensor.point, tensor.layer};
  return std::ranges::any_of(flags, [&](const NodeId& flag) {
    return flag.place == place || std::ranges::count(graph.inputs_of(flag.place), place) > 0;
  });
}

}  // namespace

void keep_only(Pass& pass, TraceLevel level, const std::vector<NodeId>& flags, const Graph& graph) {
  for (RecordedTensor& tensor : pass.tensors)
    if (!is_kept(tensor, level, flags, graph)) tensor.data = {};
}

std::vector<FaultRequest> faults_in_rank(std::vector<FaultRequest> faults, int rank) {
  std::erase_if(faults, [&](const FaultRequest& f) { return f.rank >= 0 && f.rank != rank; });
  return faults;
}

EngineOptions engine_of_rank(EngineOptions options, int ranks,
                             const std::vector<FaultRequest>& faults) {
  if (options.threads <= 0) options.threads = std::max(1, machine_threads() / ranks);
  options.graph = options.graph && std::ranges::none_of(faults, needs_host);
  return options;
}

ReferenceOptions reference_options(const ReferenceLibrary& reference, const EngineOptions& engine,
                                   int64_t memory) {
  const int number = number_of(engine.device);
  return {.dtype = engine.dtype,
          .threads = engine.threads,
          .gpu = number >= 0 && reference.has_gpu(number) ? number : -1,
          .memory = memory};
}

namespace {

// Tokens that will be fed: the last choice of a text is not.
int64_t tokens_to_feed(const std::vector<Request>& requests) {
  int64_t tokens = 0;
  for (const Request& request : requests)
    tokens += std::ssize(request.prompt) + request.all_steps() - request.samples;
  return tokens;
}

// Returns how many tokens they can choose.
int64_t submit_all(Engine& engine, const std::vector<Request>& requests) {
  int64_t total = 0;
  for (const Request& request : requests) {
    engine.submit(request);
    total += request.all_steps();
  }
  return total;
}

void note_stop(const Engine& engine, int64_t total, Result& result) {
  result.notes.push_back(fmt::format(kStoppedEarly, tokens_chosen(engine), total, "tokens"));
}

// Steps until every request has ended, or enough is known. Returns false when the ranks parted.
bool serve(Engine& engine, Probe& probe, Judge& judge, Auditor& auditor,
           const std::function<bool()>& enough, Ranked* ranks) try {
  while (!enough() && engine.step(probe)) {
    check(probe.failure().empty(), "{}", probe.failure());
    const std::vector<int32_t> ended = engine.take_ended();
    if (!ended.empty()) probe.flush();  // a device may be behind with what the judge is to see
    for (const int32_t request : ended) judge.end(request), auditor.end(request);
  }
  return true;
} catch (const RanksParted& parted) {
  ranks->part(parted);
  return false;
}

// When all requests have ended nobody holds a page.
void note_held_pages(const Engine& engine, Result& result) {
  const int64_t all = engine.pool().pages(), held = all - engine.pool().available();
  if (held > 0)
    result.notes.push_back(fmt::format(
        "{} of {} pages of the cache are held though every request has ended: they are lost", held,
        all));
}

// The models beside the engine, and the ways in which its ops may go wrong.
struct Models {
  std::unique_ptr<ReferenceModel> exact, rounded;
  std::unique_ptr<Hypotheses> hypotheses;
};

std::unique_ptr<Hypotheses> hypotheses_of(const JudgedRun& run, const ReferenceOptions& options) {
  auto whole = run.reference.hypotheses(run.checkpoint, options);
  return run.ranks ? run.ranks->hypotheses(std::move(whole)) : std::move(whole);
}

// The model in fp64, and in the run's dtype: how far they lie apart is what rounding alone does to
// the logits. They take every row, and are left out where only some are judged.
Models models_of(const JudgedRun& run, const ReferenceOptions& options) {
  Models models{.hypotheses = hypotheses_of(run, options)};
  if (!run.judge.rows.all()) return models;
  models.exact = run.reference.model(run.checkpoint, options, DType::f64);
  models.rounded = run.reference.model(run.checkpoint, options, run.engine.dtype);
  return models;
}

// hidden: points that nobody sees.
JudgeOptions judging_of(const JudgedRun& run, const std::vector<std::string_view>& hidden) {
  JudgeOptions judging = run.judge;
  judging.threads = run.engine.threads;
  if (!hidden.empty())
    judging.recorded = [hidden](const Place& place) {
      return std::ranges::count(hidden, place.point->name) == 0;
    };
  return judging;
}

}  // namespace

Seeded seeded_of(const JudgedRun& run, EngineOptions& options) {
  const Device device = options.device;
  const Ops ops = run.ops ? *run.ops : ops_of(device);
  if (!run.ranks) {
    const ModelConfig& config = run.checkpoint.config();
    std::optional<InterpreterOptions> step = run.step;
    Seeded seeded(ops, run.faults, config, device, run.watch, nullptr, step ? &*step : nullptr);
    if (step) {
      options.in_shares = shows_shares(step->schedule);
      options.make_executor = interpreter_of(config, *std::move(step));
    }
    return seeded;
  }
  const RankSeams seams = run.ranks->seams(options);
  return {
      ops,   faults_in_rank(run.faults, run.ranks->rank()), run.ranks->config(), device, run.watch,
      &seams};
}

std::unique_ptr<Engine> engine_of(const JudgedRun& run, const Seeded& seeded,
                                  const EngineOptions& options) {
  if (run.ranks) return run.ranks->engine(seeded.ops, options, seeded.hooks);
  return std::make_unique<Engine>(run.checkpoint, seeded.ops, options, seeded.hooks);
}

namespace {

std::unique_ptr<Oracle> oracle_of(const JudgedRun& run, const ReferenceOptions& options) {
  auto oracle = run.reference.oracle(run.checkpoint, options);
  return run.ranks ? run.ranks->oracle(std::move(oracle)) : std::move(oracle);
}

void put_weights_hash(const JudgedRun& run, std::map<std::string, std::string>& provenance) {
  if (run.weights_hash.valid()) provenance.insert_or_assign("weights_xxh3", run.weights_hash.get());
}

Manifest manifest_of(const JudgedRun& run, const Engine& engine) {
  Manifest manifest = manifest_of(engine, run.level, run.judge.selection, run.provenance);
  // A trace begins with it.
  if (!run.trace.empty()) put_weights_hash(run, manifest.provenance);
  if (run.ranks) run.ranks->describe(manifest);
  // Which keys a share of an attention holds hangs on it, whatever else is known of the run.
  if (engine.model().placement().in_shares)
    manifest.provenance.try_emplace("page_size", std::to_string(run.engine.page_size));
  return manifest;
}

// progress: borrowed.
std::function<void(std::string_view, int)> told_of(const JudgedRun& run, RunProgress& progress) {
  return [&progress, ranks = run.ranks](std::string_view doing, int layer) {
    progress.at(doing, layer);
    if (ranks) ranks->beat();
  };
}

// stopped_of: the tokens of a run that stopped early; 0: it did not.
void add_end(const JudgedRun& run, const Engine& engine, const Auditor& auditor, int64_t stopped_of,
             Result& result) {
  if (run.audit) add_audit(result, auditor);
  stopped_of > 0 ? note_stop(engine, stopped_of, result) : note_held_pages(engine, result);
  if (!run.ranks) return;
  run.ranks->name_ranks(result);
  run.ranks->end(result);
}

ErrorBudget share_out(const JudgedRun& run, const ReferenceOptions& options,
                      ErrorBudgetMaker& maker) {
  if (run.progress) run.progress("sharing out the error of the logits");
  return maker.make(*run.reference.error_sharer(run.checkpoint, options));
}

// Who comes after the judge: causes, the error budget, a trace.
struct Followers {
  const JudgedRun& run;
  const Graph& graph;
  const Judge& judge;
  Causes& causes;
  std::optional<ErrorBudgetMaker>& budget;
  TraceWriter* writer;  // null: no trace
  RunProgress& progress;
  bool found = false;  // a pass had a finding

  // beside: as LiveJudge::Options.
  LiveJudge::Options options(bool beside, Oracle& oracle) {
    return {.digests = writer != nullptr,
            .beside = beside,
            .copied = run.judge.rows.all() ? held_by(oracle) : Recorder::Copied(),
            .keeps = [this](const auto& tensor, const auto& flags) { return keeps(tensor, flags); },
            .judged = [this](const Pass& so_far, const auto& flags) { explain(so_far, flags); },
            .ended = [this](Pass pass, const auto& flags) { end_pass(pass, flags); }};
  }
  bool keeps(const RecordedTensor& tensor, const std::vector<NodeId>& flags) const {
    if (run.seen || budget) return true;  // who reads all of a pass
    return writer != nullptr && is_kept(tensor, run.level, flags, graph);
  }
  void explain(const Pass& so_far, const std::vector<NodeId>& flags) {
    if (run.causes)
      causes.add(so_far, flags, [this](const Place& p) { return judge.has_just_judged(p); });
  }
  void end_pass(Pass& pass, const std::vector<NodeId>& flags) {
    progress.end_pass();
    found |= !flags.empty();
    if (budget) budget->add(pass);
    if (run.seen) run.seen(pass, flags);
    if (writer == nullptr) return;
    keep_only(pass, run.level, flags, graph);
    writer->write(pass);
  }
};

}  // namespace

//   Engine -> Probe -> LayerWatch -> [RecordBefore] -> [watch] -> [Auditor] -> Only -> LiveJudge
//                                                                                        |
//                                        trace <- keep_only <- Causes <- Judge, layer by layer
//
// A layer is judged before the next one is computed, or beside it by a thread of the judge's, so
// that memory holds little of a pass; and a pass before the next one, so that --fail-fast stops at
// the first finding.
Result judge_run(const JudgedRun& run) {
  const ReferenceOptions reference = reference_options(run.reference, run.engine, run.memory);
  const auto oracle = oracle_of(run, reference);
  EngineOptions options = run.engine;
  Seeded seeded = seeded_of(run, options);
  check_faults(run, seeded.clean);
  options.graph = options.graph && seeded.clean && run.before == nullptr;
  if (run.before) run.before->wrap(seeded.ops);
  const std::unique_ptr<Engine> made = engine_of(run, seeded, options);
  Engine& engine = *made;
  const int64_t total = submit_all(engine, run.requests);
  const Models models = models_of(run, reference);
  const Manifest manifest = manifest_of(run, engine);
  if (run.before) run.before->expect(manifest);
  std::unique_ptr<TraceWriter> writer;
  if (!run.trace.empty()) writer = create_trace(run.trace, manifest);
  JudgeOptions judging = judging_of(run, seeded.ops.fused.hidden());
  RunProgress progress(run.progress, manifest.graph.layers(), tokens_to_feed(run.requests));
  judging.progress = told_of(run, progress);
  Judge judge(manifest, *oracle, models.exact.get(), models.rounded.get(), judging);
  Causes causes(manifest, judge, *oracle, *models.hypotheses, judging.progress);
  std::optional<ErrorBudgetMaker> budget = budget_maker_of(run.judge, manifest);
  Followers followers{run, manifest.graph, judge, causes, budget, writer.get(), progress};
  // Whoever stands between the engine and its ops may ask the oracle too, and ranks wait for each
  // other.
  const bool several = options.device != Device::cpu || judging.threads != 1;
  const bool beside = several && seeded.clean && !run.before && !run.ranks;
  LiveJudge live(judge, followers.options(beside, *oracle));
  Only needed(live, wanted_to_judge(manifest.graph, judging));
  Auditor auditor(run.engine.page_size);
  Tee audited(needed, auditor);
  Sink& seen = run.audit ? static_cast<Sink&>(audited) : needed;
  Tee watched(run.watch ? *run.watch : seen, seen);
  Sink& judged = run.watch ? static_cast<Sink&>(watched) : seen;
  Tee before(run.before ? static_cast<Sink&>(*run.before) : judged, judged);
  LayerWatch shown(run.before ? before : judged, [&](int32_t pass, int64_t rows, int layer) {
    progress.begin_pass(pass, rows);
    progress.at("computing", layer);
  });
  Probe probe(run.ranks ? &run.ranks->sink(shown, run.judge.selection) : &shown);
  const auto enough = [&] {
    return run.judge.fail_fast && (followers.found || !auditor.findings().empty());
  };
  const bool parted = !serve(engine, probe, judge, auditor, enough, run.ranks);
  const std::vector<RequestInfo> requests = infos_of(engine);
  const bool stopped = (enough() || parted) && tokens_chosen(engine) < total;
  if (!stopped) check_served(run.requests, requests);
  if (run.before) run.before->finish();
  Result result = judge.finish(requests, /*complete=*/!parted);
  causes.put_into(result);
  add_end(run, engine, auditor, stopped ? total : 0, result);
  if (budget) result.error_budget = share_out(run, reference, *budget);
  put_weights_hash(run, result.provenance);
  result.provenance["oracle"] = name_of_oracle(run.reference, reference.gpu);
  if (run.user_op_calls) run.user_op_calls->put_into(result);
  if (writer && run.user_op_calls) writer->note("user_ops", run.user_op_calls->called());
  if (writer && run.ranks) writer->note(std::string(kRanksApart), text_of(run.ranks->apart()));
  if (writer) writer->finish(requests);
  return result;
}

}  // namespace lockstep
