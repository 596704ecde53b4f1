// The same requests are served whole, in one batch, and then in each of the table's ways by an
// engine of its own. The base's choices are forced on all modes, so that a mode that flips a token
// can be compared past it. A ModeComparer lines each tensor up with the base's by request and
// position, and an Auditor watches the pages of each engine. Modes that need room (strangers in the
// batch, smaller pages) make their own pools.
#include "src/session/modes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "probes/recorder.h"
#include "probes/tee.h"
#include "src/audit/audit.h"
#include "src/judge/mode_comparer.h"
#include "src/judge/story.h"
#include "src/session/judged_run.h"
#include "src/session/ranked.h"

namespace lockstep {
namespace {

constexpr const char* kBase = "whole";

// All requests in one engine, with options changed by `change`.
template <typename Change>
std::vector<Mode::Serving> all_with(const Mode::Base& base, Change change) {
  Mode::Serving serving{base.engine, base.requests, std::vector<int32_t>(base.requests.size())};
  std::iota(serving.base_of.begin(), serving.base_of.end(), 0);
  change(serving.engine);
  const int64_t needed = pages_for(serving.requests, serving.engine.page_size);
  serving.engine.pages = std::max(serving.engine.pages, needed);
  return {serving};
}

std::vector<Mode::Serving> unchanged(const Mode::Base& base) {
  return all_with(base, [](EngineOptions&) {});
}

template <int64_t kTokens>
std::vector<Mode::Serving> chunked(const Mode::Base& base) {
  return all_with(base, [](EngineOptions& engine) { engine.chunk = kTokens; });
}

std::vector<Mode::Serving> token_by_token(const Mode::Base& base) {
  std::vector<Mode::Serving> servings;
  for (size_t i = 0; i < base.requests.size(); ++i) {
    Mode::Serving& alone = servings.emplace_back(
        Mode::Serving{base.engine, {base.requests[i]}, {static_cast<int32_t>(i)}});
    alone.engine.chunk = 1;
  }
  return servings;
}

// A request that nobody asked for.
Request stranger(const Mode::Base& base, int64_t tokens, int64_t max_new) {
  Request request{.max_new = max_new};
  const std::vector<int32_t>& from = base.requests.back().prompt;
  for (int64_t i = 0; i < tokens; ++i)
    request.prompt.push_back(from[from.size() - 1 - i % from.size()]);
  return request;
}

// Strangers before and after, so that every row of the base has another number; and each request
// alone, since the longest of the base's batch may decide how an op cuts its work for all of them.
std::vector<Mode::Serving> with_batch_mates(const Mode::Base& base) {
  Mode::Serving serving = unchanged(base)[0];
  serving.requests.insert(serving.requests.begin(), stranger(base, 5, 9));
  serving.base_of.insert(serving.base_of.begin(), -1);
  serving.requests.push_back(stranger(base, 19, 2));
  serving.base_of.push_back(-1);
  const int64_t needed = pages_for(serving.requests, serving.engine.page_size);
  serving.engine.pages = std::max(serving.engine.pages, needed);
  std::vector<Mode::Serving> servings = {serving};
  for (size_t i = 0; base.requests.size() > 1 && i < base.requests.size(); ++i)
    servings.push_back({base.engine, {base.requests[i]}, {static_cast<int32_t>(i)}});
  return servings;
}

// Each request twice: the second one comes when the first one's pages are all published, and so is
// one of a stranger, which must not be taken for the request's own.
std::vector<Mode::Serving> prefix_hit(const Mode::Base& base) {
  std::vector<Mode::Serving> servings;
  for (size_t i = 0; i < base.requests.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    Mode::Serving& twice = servings.emplace_back(
        Mode::Serving{base.engine, {base.requests[i], base.requests[i]}, {id, id}});
    twice.requests[1].arrival = twice.requests[0].steps();
    twice.requests.push_back(stranger(base, twice.engine.page_size + 1, 1));
    twice.base_of.push_back(-1);
    twice.engine.prefix_cache = true;
    twice.engine.pages =
        std::max(twice.engine.pages, pages_for(twice.requests, twice.engine.page_size));
  }
  return servings;
}

// Each request behind a stranger that came first, in a pool of which the two need the last page
// before the request ends: it loses its pages then and gets others later. Pages of one position let
// that happen to requests of any length; its prompt comes in two chunks, so that one that chooses a
// single token is there long enough.
std::vector<Mode::Serving> preempted(const Mode::Base& base, Preempt how) {
  std::vector<Mode::Serving> servings;
  for (size_t i = 0; i < base.requests.size(); ++i) {
    const Request& request = base.requests[i];
    const int64_t prompt = std::ssize(request.prompt), choices = request.steps();
    Mode::Serving serving{
        base.engine, {stranger(base, 1, choices + 1), request}, {-1, static_cast<int32_t>(i)}};
    serving.engine.preempt = how;
    serving.engine.page_size = 1;
    serving.engine.chunk = (prompt + 1) / 2;
    serving.engine.pages = std::max({request.max_positions(), choices + 1, prompt + 1});
    servings.push_back(std::move(serving));
  }
  return servings;
}

std::vector<Mode::Serving> recomputed(const Mode::Base& base) {
  return preempted(base, Preempt::recompute);
}
std::vector<Mode::Serving> swapped(const Mode::Base& base) {
  return preempted(base, Preempt::swap);
}

std::vector<Mode::Serving> other_pages(const Mode::Base& base) {
  return all_with(base, [](EngineOptions& engine) { engine.page_order_seed += 7919; });
}

std::vector<Mode::Serving> other_page_size(const Mode::Base& base) {
  return all_with(base, [](EngineOptions& e) { e.page_size = e.page_size == 8 ? 4 : 8; });
}

std::vector<Mode::Serving> other_threads(const Mode::Base& base) {
  return all_with(base, [](EngineOptions& e) { e.threads = e.threads == 1 ? 3 : 1; });
}

// The base's pages are filled with NaN when they are handed out.
std::vector<Mode::Serving> other_poison(const Mode::Base& base) {
  return all_with(base, [](EngineOptions& engine) { engine.poison = 60000; });
}

std::vector<Mode::Serving> replayed(const Mode::Base& base) {
  return all_with(base, [](EngineOptions& engine) { engine.graph = true; });
}

constexpr Mode kModes[] = {
    {"chunk-1", "prompts one token a pass, all requests in a batch", true, chunked<1>},
    {"chunk-7", "prompts in chunks of 7", true, chunked<7>},
    {"chunk-16", "prompts in chunks of 16", true, chunked<16>},
    {"tokens", "each request alone, one token a pass", true, token_by_token},
    {"batch-mates", "other requests in the batch, and none", false, with_batch_mates},
    {"prefix", "prompts found in the prefix cache", true, prefix_hit},
    {"recompute", "preempted, and computed again", true, recomputed},
    {"swap", "preempted, and swapped back from host memory", true, swapped},
    {"pages", "pages in another order", false, other_pages},
    {"page-size", "pages of another size", false, other_page_size},
    {"threads", "another number of threads", false, other_threads},
    {"poison", "unused slots hold a large number instead of NaN", false, other_poison},
    {"graph", "decode passes replayed as CUDA graphs", false, replayed, true},
    {"tp", "the model shared by the ranks of --tp", false, unchanged, false, true},
};

// Bugs of ranks need some, and those of one rank are not of the whole model.
std::vector<FaultRequest> faults_of_whole(std::vector<FaultRequest> faults) {
  std::erase_if(faults, [](const FaultRequest& fault) {
    return fault.rank >= 0 || fault_of(fault).seat == Fault::Seat::ranks;
  });
  return faults;
}

// Serves with an engine of its own, seen by `sink`.
std::vector<Sequence> serve(const ModesRun& run, const EngineOptions& options,
                            const std::vector<Request>& requests, Sink& sink) {
  const Seeded seeded(run.ops, run.ranks ? faults_of_whole(run.faults) : run.faults,
                      run.checkpoint.config(), options.device);
  Engine engine(run.checkpoint, seeded.ops, options, seeded.hooks);
  for (const Request& request : requests) engine.submit(request);
  Probe probe(&sink);
  while (engine.step(probe)) check(probe.failure().empty(), "{}", probe.failure());
  std::vector<Sequence> sequences;
  for (int32_t id = 0; id < engine.requests(); ++id) sequences.push_back(engine.sequence(id));
  return sequences;
}

// The engine of one rank, with all of the requests.
std::unique_ptr<Engine> rank_engine(const ModesRun& run, const Mode::Serving& serving,
                                    Ranked& ranked) {
  EngineOptions options = engine_of_rank(serving.engine, ranked.ranks());
  const RankSeams seams = ranked.seams(options);
  const Seeded seeded(run.ops, faults_in_rank(run.faults, ranked.rank()), ranked.config(),
                      options.device, nullptr, &seams);
  auto engine = ranked.engine(seeded.ops, options, seeded.hooks);
  for (const Request& request : serving.requests) engine->submit(request);
  return engine;
}

// Serves as rank 0, seen by `sink` as one model.
void serve_as_first(const ModesRun& run, const Mode::Serving& serving, const BaselineRows& rows,
                    Sink& sink) {
  run.ranks->tell(nullptr);
  const auto engine = rank_engine(run, serving, *run.ranks);
  Probe probe(&run.ranks->sink(sink, {}, &rows));
  try {
    while (engine->step(probe)) check(probe.failure().empty(), "{}", probe.failure());
  } catch (const RanksParted& parted) {
    run.ranks->part(parted);
  }
}

// The plainest serving there is: options that shape passes at their defaults, all requests at once,
// no graphs.
Mode::Base base_of(const ModesRun& run) {
  Mode::Base base{run.engine, run.requests};
  EngineOptions& engine = base.engine;
  for_each_engine_option([&](const auto& option) {
    if (option.shapes_passes) engine.*option.member = EngineOptions{}.*option.member;
  });
  engine.graph = false;
  engine.pages = std::max(engine.pages, pages_for(run.requests, engine.page_size));
  for (Request& request : base.requests) {
    request.arrival = 0;
    request.samples = 1;
    request.forced_samples.clear();
  }
  return base;
}

// Takes what an audit found in a mode as a finding of that mode.
void take_audit(const Auditor& auditor, std::string_view mode, std::vector<Finding>& findings) {
  for (Finding finding : auditor.findings()) {
    finding.rule = fmt::format("in {}: {}", mode, finding.rule);
    findings.push_back(std::move(finding));
  }
}

// The ledger counts over all modes; one of them is what it added.
std::string summary(std::string_view mode, const Result& before, const Result& after) {
  std::string text =
      fmt::format("{} and {}: {} nodes", kBase, mode, after.expected - before.expected);
  for (const Verdict verdict : values_of<Verdict>())
    if (const int64_t n = after.counts[verdict] - before.counts[verdict]; n > 0)
      text += fmt::format(", {} {}", n, name_of(verdict));
  return text;
}

// The modes that can be compared, with a note for each that cannot.
std::vector<const Mode*> comparable(const ModesRun& run, Ledger& ledger) {
  std::vector<const Mode*> left;
  const bool ops_are_right = std::ranges::all_of(run.faults, [](const FaultRequest& fault) {
    return fault_of(fault).seat == Fault::Seat::graphs;
  });
  for (const Mode* mode : run.modes) {
    if (mode->over_ranks && !run.ranks)
      ledger.note(fmt::format("{} was left out: it needs --tp 2, or more", mode->name));
    else if (mode->graphs && (run.engine.device == Device::cpu || !ops_are_right))
      ledger.note(fmt::format("{} was left out: it needs --device cuda, and no fault of an op",
                              mode->name));
    else if (!mode->other_lengths || !run.checkpoint.config().rope.depends_on_length())
      left.push_back(mode);
    else
      ledger.note(
          fmt::format("{} was left out: this model's rotary tables depend on the length of the "
                      "request in each pass, so that it has other passes or shares no pages",
                      mode->name));
  }
  check(!left.empty(),
        "no mode is left to compare: --modes all takes every one that this model has");
  return left;
}

// Where the mode is one of the ranks.
std::optional<JoinedRanks> ranks_of(const ModesRun& run, const Mode& mode) {
  if (!mode.over_ranks) return {};
  return JoinedRanks(run.ranks->joined(), run.checkpoint.config(), run.ranks->ranks());
}

// A pass that rank 0 told of.
Pass recorded(const RankPass& told) {
  Pass pass{.info = told.info};
  for (const RankTensor& t : told.tensors)
    pass.tensors.push_back({.point = t.point,
                            .layer = t.layer,
                            .rows = t.rows,
                            .dtype = t.data.view().dtype,
                            .shape = t.data.view().shape,
                            .data = t.data});
  return pass;
}

// Held to each other alone, all may be wrong alike.
void summarise_modes(Result& result, const Ledger& ledger, size_t modes) {
  summarise(result, {.reason = ledger.main_reason()});
  if (result.verdict != RunVerdict::clean) return;
  result.story = fmt::format(
      "{} nodes are alike in {} ways of serving; whether they are right was not judged, which "
      "a run without --modes does",
      result.judged, modes + 1);
}

// The requests as the base served them, with their texts to come.
void add_requests(Result& result, const std::vector<Sequence>& served) {
  for (const Sequence& sequence : served)
    result.requests.push_back(
        {.id = sequence.id,
         .name = sequence.request.name,
         .prompt = sequence.request.prompt,
         .tokens = {sequence.tokens.begin() + std::ssize(sequence.request.prompt),
                    sequence.tokens.end()},
         .argmax = sequence.argmax});
}

}  // namespace

std::span<const Mode> modes() { return kModes; }

std::string modes_help() {
  std::string help =
      "no reference: serve whole prompts, then in these ways, and compare op by op on equal inputs";
  for (const Mode& mode : modes()) help += fmt::format("\n{}: {}", mode.name, mode.says);
  return help;
}

std::vector<const Mode*> modes_from(const std::string& list) {
  std::vector<const Mode*> chosen;
  if (list == "all") {
    for (const Mode& mode : kModes) chosen.push_back(&mode);
    return chosen;
  }
  std::vector<std::string_view> names;
  for (const Mode& mode : kModes) names.push_back(mode.name);
  for (size_t start = 0; start <= list.size();) {
    const size_t end = std::min(list.find(',', start), list.size());
    const std::string name = list.substr(start, end - start);
    const auto found = std::ranges::find(kModes, name, &Mode::name);
    check(found != std::end(kModes), "--modes wants \"all\" or some of {}, found \"{}\"{}",
          fmt::join(names, ","), name, did_you_mean(name, names));
    chosen.push_back(found);
    start = end + 1;
  }
  return chosen;
}

bool asks_for_ranks(const std::string& list) {
  return std::ranges::any_of(modes_from(list), [](const Mode* mode) { return mode->over_ranks; });
}

// Tokens of the base are forced on every mode: one that chose otherwise would be compared on
// another text, and differ for that reason alone.
Result run_modes(const ModesRun& run) {
  check(!run.engine.make_executor,
        "--modes gives each op what it was given in another mode, found an --executor that shows "
        "what it computed when all of it is: leave one out");
  const Graph graph = graph_of(run.checkpoint.config());
  Ledger ledger(graph);
  const std::vector<const Mode*> wanted = comparable(run, ledger);
  Mode::Base base = base_of(run);
  BaselineRows rows(graph);
  std::vector<Finding> audited;
  if (run.progress) run.progress(kBase);
  Recorder recorder({}, false, [&](Pass pass) {
    if (run.ranks) run.ranks->tell(&pass);
    rows.add(std::move(pass));
  });
  Auditor auditor(base.engine.page_size);
  Tee both(recorder, auditor);
  const std::vector<Sequence> served = serve(run, base.engine, base.requests, both);
  take_audit(auditor, kBase, audited);
  for (size_t i = 0; i < served.size(); ++i) {
    // The token that was chosen last is never fed.
    const std::vector<int32_t>& tokens = served[i].tokens;
    const auto prompt = std::ssize(base.requests[i].prompt);
    base.requests[i].forced = {tokens.begin() + prompt, tokens.end() - 1};
    base.requests[i].max_new = std::ssize(tokens) - prompt;
  }
  for (const Mode* mode : wanted) {
    if (run.progress) run.progress(mode->name);
    const Result before = ledger.result();
    for (const Mode::Serving& serving : mode->servings(base)) {
      const std::optional<JoinedRanks> ranks = ranks_of(run, *mode);
      ModeComparer lineup(rows,
                          {kBase, std::string(mode->name), serving.base_of,
                           ranks ? &*ranks : nullptr, serving.engine.poison},
                          ledger);
      Auditor mode_auditor(serving.engine.page_size);
      // The audit second: it must see what is written, which is the base's.
      Tee seen(lineup, mode_auditor);
      ranks ? serve_as_first(run, serving, rows, seen)
            : void(serve(run, serving.engine, serving.requests, seen));
      take_audit(mode_auditor, mode->name, audited);
    }
    ledger.note(summary(mode->name, before, ledger.result()));
  }
  for (const Finding& finding : audited) ledger.stray(finding);
  Result result = ledger.result();
  result.provenance = run.provenance;
  add_requests(result, served);
  summarise_modes(result, ledger, wanted.size());
  if (run.ranks) run.ranks->end(result);
  return result;
}

void serve_modes(const ModesRun& run, Ranked& ranked) {
  Mode::Base base = base_of(run);
  BaselineRows rows(graph_of(run.checkpoint.config()));
  for (const RankPass& pass : ranked.hear()) {
    for (const PassRow& row : pass.info.rows) {
      Request& request = base.requests.at(row.row.request);
      if (row.row.position >= std::ssize(request.prompt)) request.forced.push_back(row.token);
      request.max_new = std::ssize(request.forced) + 1;
    }
    rows.add(recorded(pass));
  }
  const Mode::Serving serving = unchanged(base)[0];
  const auto engine = rank_engine(run, serving, ranked);
  ranked.serve(*engine, {}, &rows);
}

}  // namespace lockstep
