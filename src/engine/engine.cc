#include "src/engine/engine.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/check.h"

namespace lockstep {
namespace {

int threads_from(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

template <typename T>
void fill(const TensorView& tensor, float value) {
  std::fill_n(tensor.as<T>(), tensor.count(), from_float<T>(value));
}

void fill(const TensorView& tensor, float value) {
  if (tensor.dtype == DType::bf16) return fill<BFloat16>(tensor, value);
  if (tensor.dtype == DType::f16) return fill<Float16>(tensor, value);
  fill<float>(tensor, value);
}

}  // namespace

Engine::Engine(const Checkpoint& checkpoint, Ops ops, const EngineOptions& options,
               PassHook before_pass)
    : threads_(threads_from(options.threads)),
      options_(options),
      before_pass_(std::move(before_pass)),
      model_(checkpoint, options.dtype, std::move(ops), {.threads = &threads_}),
      tables_(model_.config()),
      pool_(options.pages, options.page_order),
      scheduler_(pool_, {.page_size = options.page_size,
                         .chunk = options.chunk,
                         .budget = options.budget,
                         .max_batch = options.max_batch,
                         .prefix_cache = options.prefix_cache,
                         .preempt = options.preempt,
                         .schedule = options.schedule}) {
  check(options.page_size >= 1 && options.page_size <= 256,
        "a page of 1 to 256 tokens was wanted, found --page-size {}", options.page_size);
  for (int64_t layer = 0; layer < model_.config().layers; ++layer)
    caches_.push_back(model_.make_cache(options.pages, options.page_size, cache_storage_));
}

int32_t Engine::submit(Request request) {
  const int32_t id = requests();
  check(!request.prompt.empty(), "request {} has an empty prompt: give it at least one token", id);
  check(request.max_new >= 1, "request {} asks for {} new tokens: --max-new must be at least 1", id,
        request.max_new);
  for (const auto* tokens : {&request.prompt, &request.forced})
    for (int32_t token : *tokens)
      check(token >= 0 && token < model_.config().vocab,
            "request {} has token {}, but the model's vocabulary is 0..{}", id, token,
            model_.config().vocab - 1);
  Sequence sequence{.id = id, .request = std::move(request)};
  sequence.tokens = sequence.request.prompt;
  scheduler_.add(sequences_.emplace_back(std::move(sequence)));
  return id;
}

int32_t Engine::fork(int32_t parent, int64_t max_new) {
  Sequence child{.id = requests(), .request = sequence(parent).request};
  child.request.prompt = sequence(parent).tokens;
  child.request.max_new = max_new;
  scheduler_.fork(sequence(parent), sequences_.emplace_back(std::move(child)));
  return requests() - 1;
}

bool Engine::step(Probe& probe) {
  if (!scheduler_.pending()) return false;
  const Plan plan = scheduler_.next(steps_++);
  prepare_cache(plan);
  if (plan.shares.empty()) return true;  // the next request has not arrived yet
  Batch batch = make_batch(describe(plan.shares), tables_);
  if (before_pass_) before_pass_(batch);
  const Forward forward = model_.forward(batch, caches_, probe);
  advance(plan.shares, forward.tokens);
  return true;
}

void Engine::prepare_cache(const Plan& plan) {
  const auto each_page = [&](const std::vector<int32_t>& pages, auto use) {
    for (const KvCache& cache : caches_)
      for (const TensorView& side : {cache.k, cache.v})
        for (int32_t page : pages) use(side.slice(page, 1));
  };
  const auto copy = [](const TensorView& to, const TensorView& from) {
    std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes()));
  };
  for (const Plan::Swap& swap : plan.out)
    each_page(swap.pages, [&](const TensorView& page) {
      copy(swapped_[swap.sequence->id].emplace_back(page.shape, page.dtype), page);
    });
  for (const Plan::Copy& c : plan.copies)
    for (const KvCache& cache : caches_) {
      copy(cache.k.slice(c.to, 1), cache.k.slice(c.from, 1));
      copy(cache.v.slice(c.to, 1), cache.v.slice(c.from, 1));
    }
  each_page(plan.fresh, [&](const TensorView& page) { fill(page, options_.poison); });
  for (const Plan::Swap& swap : plan.in) {
    auto kept = swapped_.at(swap.sequence->id).begin();
    each_page(swap.pages, [&](const TensorView& page) { copy(page, *kept++); });
    swapped_.erase(swap.sequence->id);
  }
}

PassInfo Engine::describe(const std::vector<Share>& shares) {
  PassInfo info{.pass = passes_++};
  for (const Share& share : shares) {
    Sequence& s = *share.sequence;
    if (std::exchange(s.resumes, false))
      info.inherited.push_back({s.id, {s.tokens.begin(), s.tokens.begin() + s.computed}});
    const Phase phase = s.prefilling() ? Phase::prefill : Phase::decode;
    for (int64_t p = s.computed; p < s.computed + share.tokens; ++p) {
      const int64_t page = s.pages[static_cast<size_t>(p / options_.page_size)];
      info.rows.push_back({{s.id, static_cast<int32_t>(p)},
                           s.tokens[static_cast<size_t>(p)],
                           page * options_.page_size + p % options_.page_size,
                           phase});
    }
    if (s.computed + share.tokens == s.length())
      info.logit_rows.push_back(static_cast<int32_t>(info.rows.size()) - 1);
    info.pages.push_back({s.id, s.pages});
  }
  return info;
}

void Engine::advance(const std::vector<Share>& shares, const TensorView& chosen) {
  int64_t next = 0;  // rows of `chosen` are the shares that reach the end of their tokens
  for (const Share& share : shares) {
    Sequence& s = *share.sequence;
    s.computed += share.tokens;
    scheduler_.computed(s);
    if (s.computed < s.length()) continue;
    const int32_t token = chosen.as<int32_t>()[next++];
    const auto made = s.argmax.size();
    s.argmax.push_back(token);
    const bool forced = made < s.request.forced.size();
    s.tokens.push_back(forced ? s.request.forced[made] : token);
    const bool ended = s.request.forced.empty() && std::ranges::count(s.request.eos, token) > 0;
    if (ended || std::ssize(s.argmax) == s.request.choices()) scheduler_.end(s);
  }
}

int64_t pages_for(const std::vector<Request>& requests, int64_t page_size) {
  int64_t pages = 0;
  for (const Request& r : requests) pages += (r.most_positions() + page_size - 1) / page_size;
  return pages + std::max<int64_t>(4, pages / 8);
}

}  // namespace lockstep
