// Every serving has an engine of its own over the same checkpoint. The watch gives each op the
// base's inputs (BitWatch), so that an op late in the model is compared as fairly as the first.
#include "src/session/determinism.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <thread>
#include <utility>

#include "kernels/base/check.h"
#include "probes/recorder.h"
#include "probes/tee.h"
#include "src/session/judged_run.h"

namespace lockstep {
namespace {

constexpr int64_t kBatches[] = {2, 4, 8};
constexpr int64_t kBatch = 4;   // in which places and threads are tried, and what is served again
constexpr int64_t kUneven = 8;  // of which one is four times as long, and the others are short

// 1, 2, 4, ... and all cores, but for the number that the base has.
std::vector<int> other_threads(int base) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::set<int> numbers = {cores};
  for (int n = 1; n < cores; n *= 2) numbers.insert(n);
  numbers.erase(base == 0 ? cores : base);
  return {numbers.begin(), numbers.end()};
}

// Each differs from alone or from the batch of four in one circumstance, so that determinism_of()
// can tell which it was.
std::vector<ServingFacts> servings_of(const DeterminismRun& run, int32_t request) {
  const ServingFacts alone{.request = request, .threads = run.engine.threads};
  ServingFacts batched = alone;
  batched.batch = kBatch;
  std::vector<ServingFacts> all = {alone};
  const auto again = [&](ServingFacts facts) {
    for (facts.repeat = 1; facts.repeat < run.repeats; ++facts.repeat) all.push_back(facts);
  };
  again(alone);
  for (const int64_t batch : kBatches) {
    all.push_back(alone);
    all.back().batch = batch;
  }
  all.push_back(alone);
  all.back().batch = kUneven;
  all.back().uneven = true;
  again(batched);
  for (const int64_t place : {kBatch / 2, kBatch - 1}) {
    all.push_back(batched);
    all.back().place = place;
  }
  for (const ServingFacts& facts : {alone, batched}) {
    for (const int threads : other_threads(run.engine.threads)) {
      all.push_back(facts);
      all.back().threads = threads;
    }
    if (!run.can_graph) continue;
    all.push_back(facts);
    all.back().graph = true;
  }
  return all;
}

// Another request, whose tokens are the prompt's backwards, again and again, each moved by a prime
// times its number, so that no mate shares a prefix with another.
Request mate_of(const Request& request, int64_t number, int64_t length, int64_t vocab) {
  Request mate{.max_new = request.max_new};
  const auto size = std::ssize(request.prompt);
  for (int64_t i = 0; i < length; ++i)
    mate.prompt.push_back(static_cast<int32_t>(
        (request.prompt[static_cast<size_t>(size - 1 - i % size)] + 7919 * (number + 1)) % vocab));
  return mate;
}

// How long the mates are, so that every pass of the batch has as many rows however they differ: as
// long as the request, or the last of them four times as long and the others half as long together.
// An op that splits its work by the longest of the batch, or the shortest, does it otherwise then.
std::vector<int64_t> mate_lengths(const ServingFacts& facts, int64_t own, int64_t most) {
  const int64_t mates = facts.batch - 1;
  std::vector<int64_t> lengths(static_cast<size_t>(mates), own);
  if (!facts.uneven) return lengths;
  const int64_t longest = std::max(own, std::min(4 * own, most));
  const int64_t left = mates * own - longest, shorter = mates - 1;
  for (int64_t i = 0; i < shorter; ++i)
    lengths[static_cast<size_t>(i)] = std::max<int64_t>(1, (left + i) / shorter);
  lengths.back() = longest;
  return lengths;
}

// The same rows, as those of another request.
Pass renamed(Pass pass, int32_t request) {
  for (PassRow& row : pass.info.rows) row.row.request = request;
  for (RecordedTensor& tensor : pass.tensors)
    for (Row& row : tensor.rows) row.request = request;
  return pass;
}

// The first serving of a request is the base: it is recorded, and later ones are forced to its
// tokens, since a token that differs would change all inputs after it.
class Servings {
 public:
  explicit Servings(const DeterminismRun& run)
      : run_(run), base_(graph_of(run.checkpoint.config())), none_(base_.graph()) {}

  void serve(int32_t id) {
    Request request = run_.requests[id];
    request.arrival = 0;
    request.samples = 1;
    request.forced_samples.clear();
    for (const ServingFacts& facts : servings_of(run_, id)) {
      const bool is_base = facts_.empty() || facts_.back().request != id;
      if (run_.progress) run_.progress(fmt::format("request {}: {}", id, facts.text()));
      facts_.push_back(facts);
      bits_.emplace_back();
      const Sequence served = is_base ? serve_base(facts, request) : serve_again(facts, request);
      if (!is_base) continue;
      // The token that was chosen last is never fed.
      const auto prompt = std::ssize(request.prompt);
      request.forced = {served.tokens.begin() + prompt, served.tokens.end() - 1};
      request.max_new = std::ssize(served.tokens) - prompt;
    }
  }

  Determinism result() const { return determinism_of(base_, facts_, bits_); }

 private:
  Sequence serve_base(const ServingFacts& facts, const Request& request) {
    Recorder recorder({}, false,
                      [&](Pass pass) { base_.add(renamed(std::move(pass), facts.request)); });
    // Compared with nothing, it takes down the hashes of the base itself.
    BitWatch watch(none_, facts.request, 0, bits_.back());
    Tee both(recorder, watch);
    return serve_with(facts, {request}, both);
  }

  Sequence serve_again(const ServingFacts& facts, const Request& request) {
    std::vector<Request> batch;
    const ModelConfig& config = run_.checkpoint.config();
    const int64_t most = config.max_positions > 0 ? config.max_positions - request.max_new
                                                  : std::numeric_limits<int64_t>::max();
    std::vector<int64_t> lengths = mate_lengths(facts, std::ssize(request.prompt), most);
    for (int64_t i = 0; i < facts.batch; ++i) {
      if (i == facts.place) {
        batch.push_back(request);
        continue;
      }
      batch.push_back(mate_of(request, i, lengths.front(), config.vocab));
      lengths.erase(lengths.begin());
    }
    BitWatch watch(base_, facts.request, static_cast<int32_t>(facts.place), bits_.back());
    return serve_with(facts, batch, watch);
  }

  Sequence serve_with(const ServingFacts& facts, const std::vector<Request>& requests,
                      Sink& sink) const {
    EngineOptions options = run_.engine;
    // Options that decide which rows share a pass go back to their defaults: the batch that is
    // asked for decides that here.
    for_each_engine_option([&](const auto& option) {
      if (option.shapes_passes) options.*option.member = EngineOptions{}.*option.member;
    });
    options.threads = facts.threads;
    options.graph = facts.graph;
    options.pages = std::max(options.pages, pages_for(requests, options.page_size));
    const Seeded seeded(run_.ops, run_.faults, run_.checkpoint.config(), options.device);
    Engine engine(run_.checkpoint, seeded.ops, options, seeded.hooks);
    for (const Request& request : requests) engine.submit(request);
    Probe probe(&sink);
    while (engine.step(probe)) check(probe.failure().empty(), "{}", probe.failure());
    return engine.sequence(static_cast<int32_t>(facts.place));
  }

  const DeterminismRun& run_;
  BaselineRows base_, none_;
  std::vector<ServingFacts> facts_;
  std::vector<ServedBits> bits_;
};

}  // namespace

Determinism run_determinism(const DeterminismRun& run) {
  check(run.repeats >= 2,
        "what is served {} can be compared with nothing: repeat it at least twice",
        run.repeats == 1 ? "once" : fmt::format("{} times", run.repeats));
  check(!run.engine.make_executor,
        "--determinism gives each op what it was given when its request was served alone, found an "
        "--executor that shows what it computed when all of it is: leave one out");
  Servings servings(run);
  for (size_t i = 0; i < run.requests.size(); ++i) servings.serve(static_cast<int32_t>(i));
  Determinism result = servings.result();
  result.requests = std::ssize(run.requests);
  result.provenance = run.provenance;
  if (!run.can_graph)
    result.notes.emplace_back(
        "graphs were not tried: they want --device cuda and no fault of an op");
  return result;
}

}  // namespace lockstep
