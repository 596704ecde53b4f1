// A pass on a device that only decodes is computed in room that is padded to a power of two, with
// graphs or without, so that the same bits come either way: kernels may choose their splits by the
// shapes of their arguments. The cache is prepared in the order that Plan has: pages that are
// swapped out are copied before anybody else writes to them.
#include "src/engine/engine.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <thread>

#include "kernels/base/check.h"
#include "src/engine/device_digests.h"
#include "src/model/device_batch.h"

namespace lockstep {
namespace {

int threads_from(int wanted) { return wanted > 0 ? wanted : machine_threads(); }

// Where RoPE depends on the length, a key is turned for the length that its request had in the pass
// that made it: pages of the same tokens are then not the same, and a text would depend on what
// others asked before it.
EngineOptions for_scheduler(EngineOptions options, const ModelConfig& config) {
  options.prefix_cache = options.prefix_cache && !config.rope.depends_on_length();
  return options;
}

constexpr int64_t kRun = 64;  // pages that are poisoned at once

constexpr int64_t kMostPages = std::numeric_limits<int32_t>::max();

// Each sample of a request that is forced has a text of its own.
void force_sample(const Request& all, int32_t sample, Request& own) {
  own.forced_samples.clear();
  if (all.forced_samples.empty()) return;
  own.forced = all.forced_samples[sample - 1];
  own.max_new = std::ssize(own.forced) + 1;
}

// A position is a number of 32 bits.
void check_positions(const Request& request, int64_t id) {
  const int64_t most = std::numeric_limits<int32_t>::max() - std::ssize(request.prompt);
  check(request.most_steps() <= most,
        "request {} asks for {} tokens after its {}, but a request has at most {} positions: lower "
        "--max-new",
        id, request.most_steps(), request.prompt.size(), std::numeric_limits<int32_t>::max());
}

// Calls use(first, count) for stretches of pages that follow each other.
void each_run(std::vector<int32_t> pages, const auto& use) {
  std::ranges::sort(pages);
  for (size_t first = 0, i = 0; i < pages.size(); first = i) {
    for (++i; i < pages.size() && pages[i] == pages[i - 1] + 1 && i - first < kRun; ++i) {
    }
    use(pages[first], i - first);
  }
}

// A CPU tensor of that value.
Tensor filled(const Shape& shape, DType dtype, float value) {
  Tensor tensor(shape, dtype);
  const auto fill = [&]<typename T>(T* first) {
    std::fill_n(first, tensor.view().count(), from_float<T>(value));
  };
  if (dtype == DType::bf16)
    fill(tensor.as<BFloat16>());
  else if (dtype == DType::f16)
    fill(tensor.as<Float16>());
  else
    fill(tensor.as<float>());
  return tensor;
}

}  // namespace

Engine::Engine(const Checkpoint& checkpoint, Ops ops, const EngineOptions& options, Hooks hooks)
    : threads_(threads_from(options.threads)),
      options_(options),
      hooks_(std::move(hooks)),
      model_(checkpoint, options.dtype, std::move(ops),
             {.threads = &threads_,
              .stream = stream_of(options.device),
              .device = options.device,
              .make_executor = options.make_executor,
              .over_ranks = options.over_ranks,
              .in_shares = options.in_shares}),
      tables_(model_.config(), options.device),
      graphs_(model_, caches_, tables_, hooks_.before_replay, options.exact_rows),
      pool_(options.pages, options.page_order_seed),
      scheduler_(pool_, for_scheduler(options, checkpoint.config())) {
  check(options.page_size >= 1 && options.page_size <= 256,
        "a page holds 1 to 256 tokens, found --page-size {}", options.page_size);
  for (int64_t layer = 0; layer < model_.config().layers; ++layer)
    caches_.push_back(model_.make_cache(options.pages, options.page_size, cache_storage_));
  const ModelConfig& config = model_.config();
  poisoned_ =
      copy_on(options.device, filled({kRun, options.page_size, config.kv_heads, config.head_dim},
                                     options.dtype, options.poison));
}

Engine::~Engine() {
  try {
    graphs_.rejoin();
    wait_for(options_.device);
  } catch (const std::exception&) {
    // Nobody is left who wants what went wrong.
  }
}

int32_t Engine::submit(Request request) {
  const int32_t id = requests();
  check(!request.prompt.empty(), "request {} has an empty prompt: give it at least one token", id);
  check(request.max_new >= 1, "request {} asks for {} new tokens: --max-new must be at least 1", id,
        request.max_new);
  std::vector<const std::vector<int32_t>*> given = {&request.prompt, &request.forced};
  for (const std::vector<int32_t>& sample : request.forced_samples) given.push_back(&sample);
  for (const auto* tokens : given)
    for (int32_t token : *tokens)
      check(token >= 0 && token < model_.config().vocab,
            "request {} has token {}, but the model's vocabulary is 0..{}", id, token,
            model_.config().vocab - 1);
  check_positions(request, id);
  request.sampling.check_ranges(fmt::format("request {}", id));
  check(request.samples >= 1, "request {} asks for {} samples: ask for at least 1", id,
        request.samples);
  check(std::ssize(request.forced_samples) + 1 == request.samples ||
            (request.forced.empty() && request.forced_samples.empty()),
        "request {} asks for {} samples of tokens that are forced: leave out one of both", id,
        request.samples);
  check(request.stop.empty() || options_.text_of,
        "request {} has stop texts, but the checkpoint has no tokenizer: give token ids that end "
        "it instead",
        id);
  Sequence sequence{.id = id, .root_request = id, .request = std::move(request)};
  sequence.tokens = sequence.request.prompt;
  drop_ahead();
  scheduler_.add(sequences_.emplace_back(std::move(sequence)));
  return id;
}

int32_t Engine::fork(int32_t parent, int64_t max_new) {
  const Sequence& from = sequence(parent);
  Sequence child{.id = requests(), .root_request = from.root_request, .request = from.request};
  // Forks by hand count on where the samples of the request end.
  child.sample = static_cast<int32_t>(
      std::ranges::count(sequences_, from.root_request, &Sequence::root_request));
  child.request.prompt = from.tokens;
  child.request.max_new = max_new;
  drop_ahead();
  scheduler_.fork(from, sequences_.emplace_back(std::move(child)));
  forked_.insert({parent, requests() - 1});
  return requests() - 1;
}

bool Engine::step(Probe& probe) {
  if (!scheduler_.pending()) {
    probe.flush();
    return false;
  }
  // Steps in which nobody could be served are passed over.
  steps_ = scheduler_.next_busy(steps_);
  const bool queued = !ahead_.empty() && graphs_.is_ahead(probe);
  if (!queued) drop_ahead();
  // Pages of a request that ended may still be at work, and are given to others.
  if (!queued) graphs_.rejoin();
  Chunks chunks = queued ? std::exchange(ahead_, {}) : plan_pass();
  if (steps_ < std::numeric_limits<int64_t>::max()) ++steps_;
  if (chunks.empty()) return true;  // a hook left none
  PassInfo info = describe(chunks);
  ++passes_;
  passes_ahead_ += queued;
  if (probe.on()) describe_holders(info);  // it asks for every page of the pool
  DigestedPass digested;
  Forward forward = queued ? graphs_.take_ahead(std::move(info), probe, digested)
                           : compute(std::move(info), probe, digested);
  for (const Plan::Chunk& chunk : chunks) {
    chunk.sequence->computed += chunk.tokens;
    scheduler_.computed(*chunk.sequence);
  }
  if (options_.device != Device::cpu)
    forward.tokens = fetch_tokens(chunks, forward, probe, std::move(digested));
  advance(chunks, forward);
  return true;
}

// Returns the chunks of the next pass, whose pages are then as it wants them.
Engine::Chunks Engine::plan_pass() {
  Plan plan = scheduler_.next(steps_);
  if (hooks_.after_plan) hooks_.after_plan(plan, pool_);
  prepare_cache(plan);
  return std::move(plan.chunks);
}

Forward Engine::compute(PassInfo info, Probe& probe, DigestedPass& digested) {
  Batch batch = make_batch(std::move(info), tables_);
  if (hooks_.before_pass) hooks_.before_pass(batch);
  if (options_.device == Device::cpu) return model_.forward(batch, caches_, probe);
  return compute_on_device(std::move(batch), probe, digested);
}

// Returns the tokens of a pass in host memory, once they are there. What is to be queued after the
// pass is queued while the device is still at it.
TensorView Engine::fetch_tokens(const Chunks& chunks, const Forward& forward, Probe& probe,
                                DigestedPass digested) {
  const DeviceRuntime& device = runtime_of(options_.device);
  const bool is_digested = digested.layout != nullptr;
  TensorView there;
  if (goes_on(chunks, probe)) there = go_ahead(chunks, forward.tokens, probe);
  CUstream_st* stream = device.stream;
  if (!there.empty()) {
    stream = device.digests.result_stream;
  } else {
    there = forward.tokens;
    // Digests may still be made when the tokens are here, and the next pass is made ready
    // meanwhile.
    if (is_digested) stream = device.digests.result_stream, device.digests.follow_ops(stream);
  }
  const int64_t rows = there.count();
  if (tokens_.view().empty() || tokens_.view().count() < rows)
    tokens_ = Tensor::pinned({2 * rows}, DType::i32, options_.device);
  const TensorView tokens = rows > 0 ? tokens_.view().slice(0, rows) : TensorView{};
  if (rows > 0) device.copy(tokens.data, there.data, tokens.bytes(), stream);
  if (is_digested) probe.push(std::move(digested));
  // Also where a chunk of a prompt chooses none: what went wrong in it is not to be said a pass
  // later.
  device.wait(stream);
  return tokens;
}

// Whether the next pass is known but for the tokens that this one chooses: all that runs goes on
// with the most likely token, and whoever looks on does no more than queue work.
bool Engine::goes_on(const Chunks& chunks, Probe& probe) const {
  const bool is_hooked = hooks_.after_plan || hooks_.before_pass || hooks_.before_replay;
  const bool looks_on = !probe.on() || probe.on_device() || probe.digests() != nullptr;
  const auto adds_one = [](const Plan::Chunk& chunk) {
    const Sequence& s = *chunk.sequence;
    // A text that begins may be forked, and its last token is never fed.
    return s.computed == s.length() && !s.argmax.empty() && s.request.forced.empty() &&
           s.request.sampling.argmax() && s.request.sampling.logprobs == 0 &&
           std::ssize(s.argmax) + 1 < s.request.steps();
  };
  return options_.graph && !is_hooked && looks_on && !probe.writes() &&
         std::ranges::all_of(chunks, adds_one) && scheduler_.goes_on(chunks);
}

// Queues the pass after that of `chunks`, and returns what DecodeGraphs::go_ahead does.
TensorView Engine::go_ahead(const Chunks& chunks, const TensorView& chosen, Probe& probe) {
  // A plan wants to know how many tokens there are. It is told 0 for those that nobody knows yet.
  struct Unknown {
    const Chunks& chunks;
    explicit Unknown(const Chunks& of) : chunks(of) {
      for (const Plan::Chunk& chunk : chunks) chunk.sequence->tokens.push_back(0);
    }
    ~Unknown() {
      for (const Plan::Chunk& chunk : chunks) chunk.sequence->tokens.pop_back();
    }
    Unknown(const Unknown&) = delete;
    Unknown& operator=(const Unknown&) = delete;
  };
  const Unknown unknown(chunks);
  ahead_ = plan_pass();
  const TensorView tokens = graphs_.go_ahead(make_batch(describe(ahead_), tables_), chosen, probe);
  if (tokens.empty()) drop_ahead();
  return tokens;
}

// The pass that is queued is of no use: what the plan of it changed is as it was.
void Engine::drop_ahead() { scheduler_.take_back(std::exchange(ahead_, {})); }

Forward Engine::compute_on_device(Batch batch, Probe& probe, DigestedPass& digested) {
  const bool decode = batch.decodes();
  if (decode && options_.graph) return graphs_.run(std::move(batch), probe, digested);
  // Padded as its graph would be: the same bits, replayed or not.
  const DeviceBatch::Room room =
      decode ? decode_room(batch, options_.exact_rows) : DeviceBatch::room_of(batch);
  DeviceBatch arguments(room, options_.device);
  arguments.fill(std::move(batch), tables_);
  if (probe.digests() != nullptr)
    return forward_digested(model_, arguments.batch(), caches_, probe, nullptr, digested);
  return model_.forward(arguments.batch(), caches_, probe);
}

void Engine::prepare_cache(const Plan& plan) {
  const auto each_page = [&](const std::vector<int32_t>& pages, auto use) {
    for (const KvCache& cache : caches_)
      for (const TensorView& side : {cache.k, cache.v})
        for (int32_t page : pages) use(side.slice(page, 1));
  };
  // A pass that is followed by one that is queued ahead may still write to what is moved.
  if (!plan.out.empty() || !plan.copies.empty()) graphs_.rejoin();
  // Pages go out before anything is written: they may be among the copies' targets and the fresh
  // ones of this very plan.
  for (const Plan::Swap& swap : plan.out)
    each_page(swap.pages, [&](const TensorView& page) {
      copy(swapped_[swap.sequence->id].emplace_back(page.shape, page.dtype), page);
    });
  for (const Plan::Copy& c : plan.copies)
    for (const KvCache& cache : caches_) {
      copy(cache.k.slice(c.to, 1), cache.k.slice(c.from, 1));
      copy(cache.v.slice(c.to, 1), cache.v.slice(c.from, 1));
    }
  // One copy fills up to 64 neighbouring pages of a layer's side.
  each_run(plan.fresh, [&](int64_t first, int64_t count) {
    for (const KvCache& cache : caches_)
      for (const TensorView& side : {cache.k, cache.v})
        copy(side.slice(first, count), poisoned_.view().slice(0, count));
  });
  for (const Plan::Swap& swap : plan.in) {
    auto kept = swapped_.at(swap.sequence->id).begin();
    each_page(swap.pages, [&](const TensorView& page) { copy(page, *kept++); });
    swapped_.erase(swap.sequence->id);
  }
}

PassInfo Engine::describe(const Chunks& chunks) {
  PassInfo info{.pass = passes_};
  for (const Plan::Chunk& chunk : chunks) {
    Sequence& s = *chunk.sequence;
    if (std::exchange(s.starts_with_cached_prefix, false))
      info.inherited.push_back({s.id, {s.tokens.begin(), s.tokens.begin() + s.computed}});
    const Phase phase = s.prefilling() ? Phase::prefill : Phase::decode;
    for (int64_t p = s.computed; p < s.computed + chunk.tokens; ++p) {
      const int64_t page = s.pages[p / options_.page_size];
      info.rows.push_back({{s.id, static_cast<int32_t>(p)},
                           s.tokens[p],
                           page * options_.page_size + p % options_.page_size,
                           phase});
    }
    // Only the row of the last known token chooses anything.
    if (s.computed + chunk.tokens == s.length())
      info.logit_rows.push_back(static_cast<int32_t>(info.rows.size()) - 1);
    info.pages.push_back({s.id, s.pages});
  }
  return info;
}

void Engine::describe_holders(PassInfo& info) const {
  for (const Sequence& s : sequences_)
    if (!s.pages.empty() && std::ranges::count(info.pages, s.id, &RequestPages::request) == 0)
      info.idle.push_back({s.id, s.pages});
  for (int32_t page = 0; page < pool_.pages(); ++page)
    if (const int holders = pool_.holders(page); holders > 0)
      info.page_counts.push_back({page, holders});
}

void Engine::advance(const Chunks& chunks, const Forward& forward) {
  int64_t row = 0;  // of the logits: the shares that reach the end of their tokens
  std::vector<Choice> choices;
  for (const Plan::Chunk& chunk : chunks) {
    Sequence& s = *chunk.sequence;
    if (s.computed < s.length()) continue;
    // The samples part before the first choice, so that they share all of the prompt's pages.
    std::vector<Sequence*> choosing = {&s};
    if (s.argmax.empty() && s.sample == 0)
      for (int32_t i = 1; i < s.request.samples; ++i) {
        choosing.push_back(&sequences_[fork(s.id, s.request.max_new)]);
        force_sample(s.request, i, choosing.back()->request);
      }
    for (Sequence* sequence : choosing)
      choices.push_back({sequence, row, forward.tokens.as<int32_t>()[row]});
    ++row;
  }
  draw(choices, forward);
  for (const Choice& choice : choices) take(choice, forward);
}

// Replaces the argmax where a sequence draws its token or is forced to one.
void Engine::draw(std::vector<Choice>& choices, const Forward& forward) const {
  std::vector<Choice*> drawn;
  for (Choice& choice : choices) {
    const Sequence& s = *choice.sequence;
    if (s.argmax.size() < s.request.forced.size())
      choice.token = s.request.forced[s.argmax.size()];
    else if (!s.request.sampling.argmax())
      drawn.push_back(&choice);
  }
  const auto draw_of = [](const Sequence& s) {
    return Draw{s.argmax.size(), static_cast<uint32_t>(s.sample)};
  };
  if (options_.device == Device::cpu) {
    for (Choice* choice : drawn) {
      const Sequence& s = *choice->sequence;
      choice->token =
          choose(forward.logits.slice(choice->row, 1), s.request.sampling, s.tokens, draw_of(s));
    }
    return;
  }
  if (drawn.empty()) return;
  // All rows are drawn in one call, with the uniform numbers of the host, so that both devices draw
  // alike.
  std::vector<DeviceDraw> draws;
  std::vector<int32_t> text, tokens(drawn.size());
  for (const Choice* choice : drawn) {
    const Sequence& s = *choice->sequence;
    const Sampling& sampling = s.request.sampling;
    const int64_t begin = std::ssize(text);
    if (sampling.repetition_penalty != 1) text.insert(text.end(), s.tokens.begin(), s.tokens.end());
    draws.push_back({.row = choice->row,
                     .text_begin = begin,
                     .text_end = std::ssize(text),
                     .top_k = sampling.top_k,
                     .temperature = sampling.temperature,
                     .top_p = sampling.top_p,
                     .min_p = sampling.min_p,
                     .penalty = sampling.repetition_penalty,
                     .uniform = uniform(sampling.seed, draw_of(s))});
  }
  runtime_of(options_.device).sample(tokens, forward.logits, draws, text);
  for (size_t i = 0; i < drawn.size(); ++i) drawn[i]->token = tokens[i];
}

void Engine::take(const Choice& choice, const Forward& forward) {
  const auto& [sequence, row, token] = choice;
  Sequence& s = *sequence;
  s.argmax.push_back(forward.tokens.as<int32_t>()[row]);
  if (const int64_t count = s.request.sampling.logprobs; count > 0)
    s.logprobs.push_back(
        logprobs_of(copy_on(Device::cpu, forward.logits.slice(row, 1)), token, count));
  s.tokens.push_back(token);
  s.ending = ending_of(s);
  if (s.ending == Ending::none) {
    // It is fed next, and the op that reads it would be named in the place of the one that chose,
    // as it may be where the next pass is queued already.
    check(
        token >= 0 && token < model_.config().vocab,
        "argmax chose token {} for position {} of request {}, but the model's vocabulary is "
        "0..{}, so that nothing can go on from it: --max-new {} ends there, and judges the choice",
        token, s.tokens.size() - 1, s.id, model_.config().vocab - 1, s.argmax.size());
    return;
  }
  drop_ahead();
  scheduler_.end(s);
  if (!options_.prefix_cache && !forked_.contains(s.id)) ended_.push_back(s.id);
}

Ending Engine::ending_of(const Sequence& s) const {
  if (s.request.forced.empty()) {
    if (std::ranges::count(s.request.eos, s.tokens.back()) > 0) return Ending::eos;
    if (!s.request.stop.empty()) {
      // The text is made anew from all new tokens: a stop text may begin in one token and end in
      // another.
      const std::string text =
          options_.text_of(std::span(s.tokens).subspan(s.request.prompt.size()));
      const auto in_text = [&](const std::string& stop) {
        return text.find(stop) != std::string::npos;
      };
      if (std::ranges::any_of(s.request.stop, in_text)) return Ending::stop;
    }
  }
  return std::ssize(s.argmax) == s.request.steps() ? Ending::length : Ending::none;
}

int64_t pages_for(const std::vector<Request>& requests, int64_t page_size) {
  int64_t pages = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& r = requests[i];
    check_positions(r, i);
    const int64_t positions = r.max_positions();
    pages += r.samples * (positions / page_size + (positions % page_size != 0));
    check(pages <= kMostPages,
          "pages for all requests at once are at most {}, found that they need {} and more: lower "
          "--max-new or --samples, or say how many --pages there are to be",
          kMostPages, pages);
  }
  return std::min(pages + std::max<int64_t>(4, pages / 8), kMostPages);
}

}  // namespace lockstep
