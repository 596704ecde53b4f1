// Prompts and ways of serving are drawn from seeds that are written here, by Dice, as distributions
// of the standard library differ between implementations. The kinds of prompts are those that have
// raised false alarms somewhere: single tokens, lengths about a page, one token repeated, special
// tokens, contexts past 256.
//
// Faults need occasions: mixed() has chunks beside decodes over scattered pages, crowded() has
// prefixes that are found again, texts that part inside a page and requests that are swapped out.
#include "src/selftest/selftest_cases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <random>

#include "kernels/base/check.h"
#include "src/schedule/make_schedule.h"

namespace lockstep {
namespace {

// 0 alarms in 300 runs are at most 1.2 % with the confidence of Clopper and Pearson, 95 %.
constexpr int kClean = 300, kQuickClean = 12;
constexpr int kDraws = 100, kQuickDraws = 6;
constexpr int64_t kLong = 400, kQuickLong = 100;  // tokens

// Draws that are the same on every machine, which the standard library's distributions are not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  // The remainder favours small numbers by less than n / 2^64.
  int64_t below(int64_t n) { return random_() % n; }
  template <typename T, size_t N>
  T one_of(const std::array<T, N>& values) {
    return values[below(N)];
  }

 private:
  std::mt19937_64 random_;
};

// Any ids of the vocabulary, as likely as each other.
std::vector<int32_t> random_tokens(const SelftestPlan& plan, Dice& dice, int64_t count) {
  std::vector<int32_t> tokens;
  while (std::ssize(tokens) < count)
    tokens.push_back(static_cast<int32_t>(dice.below(plan.config.vocab)));
  return tokens;
}

// A prompt of one of the kinds that have shown false alarms somewhere.
std::vector<int32_t> some_prompt(const SelftestPlan& plan, Dice& dice, int i) {
  const int64_t longest = plan.config.max_positions - 8;
  const auto length = [&](int64_t wanted) { return std::clamp<int64_t>(wanted, 1, longest); };
  switch (i % 10) {
    case 0:
      return random_tokens(plan, dice, 1);
    case 1:
    case 2:
    case 3:
      return random_tokens(plan, dice, length(14 + i % 10));  // 15, 16, 17
    case 4:                                                   // one token again and again
      return std::vector<int32_t>(length(20 + dice.below(20)),
                                  static_cast<int32_t>(dice.below(plan.config.vocab)));
    case 5: {  // special tokens have the last ids, and the end of text among them
      std::vector<int32_t> tokens = random_tokens(plan, dice, length(9));
      for (size_t t = 0; t < tokens.size(); t += 2)
        tokens[t] = static_cast<int32_t>(plan.config.vocab - 1 - dice.below(4));
      if (!plan.config.eos.empty()) tokens[0] = plan.config.eos[0];
      return tokens;
    }
    case 6:  // past 256, but not in every round: it costs as much as ten others
      return random_tokens(plan, dice, length(i % 40 == 6 ? 257 + dice.below(30) : 30));
    default:
      if (!plan.prompts.empty()) return plan.prompts[dice.below(std::ssize(plan.prompts))];
      return random_tokens(plan, dice, length(1 + dice.below(40)));
  }
}

// Pages of the request that needs the most: with no more than that, requests must wait or be
// preempted.
int64_t largest_need(const std::vector<Request>& requests, int64_t page_size) {
  int64_t pages = 0;
  for (const Request& r : requests)
    pages = std::max(pages, (r.max_positions() + page_size - 1) / page_size);
  return pages;
}

// Chunks of prompts beside decodes in one pass, over scattered pages with ragged tails.
SelftestPlan::Case mixed(const SelftestPlan& plan, DType dtype) {
  Dice dice(11);
  SelftestPlan::Case c;
  c.requests = {{.prompt = random_tokens(plan, dice, 21), .max_new = 3},
                {.prompt = random_tokens(plan, dice, 38), .max_new = 3}};
  if (!plan.prompts.empty()) c.requests[1].prompt = plan.prompts[0];
  c.engine = {
      .device = plan.device, .dtype = dtype, .page_size = 8, .page_order_seed = 3, .chunk = 16};
  c.engine.pages = pages_for(c.requests, c.engine.page_size);
  return c;
}

// All that can happen to pages: a prefix that is found again, texts that part inside a page, and
// requests that are swapped out for others.
SelftestPlan::Case crowded(const SelftestPlan& plan, DType dtype) {
  Dice dice(12);
  SelftestPlan::Case c;
  const std::vector<int32_t> first = random_tokens(plan, dice, 21);
  c.requests = {{.prompt = first, .max_new = 9},
                {.prompt = random_tokens(plan, dice, 13), .max_new = 3},
                {.prompt = first, .max_new = 6, .arrival = 4},
                {.prompt = random_tokens(plan, dice, 10),
                 .max_new = 4,
                 .arrival = 1,
                 // A temperature so high that two samples of one prompt part soon, inside a page.
                 .sampling = {.temperature = 20, .seed = 3},
                 .samples = 2}};
  // The last token is another one, so that the text goes its own way behind the prefix that is
  // found.
  c.requests[2].prompt.back() = c.requests[1].prompt.back();
  c.engine = {.device = plan.device,
              .dtype = dtype,
              .page_size = 4,
              .page_order_seed = 3,
              .prefix_cache = true};
  c.engine.preempt = Preempt::swap;
  // Room for one request and a little: the others must be swapped out.
  c.engine.pages = largest_need(c.requests, c.engine.page_size) + 3;
  return c;
}

// Many steps, of which each reads what all before it wrote, and, of experts, may choose others.
std::vector<SelftestPlan::Case> long_cases(const SelftestPlan& plan, DType dtype) {
  std::vector<SelftestPlan::Case> cases;
  for (int i = 0; i < (plan.quick ? 1 : 3); ++i) {
    Dice dice(3000 + i);
    SelftestPlan::Case c{.name = fmt::format("clean {} long {}", name_of(dtype), i)};
    for (int r = 0; r <= i; ++r) {
      const auto prompt = std::min<int64_t>(5 + dice.below(20), plan.config.max_positions / 2);
      const int64_t room = plan.config.max_positions - prompt;
      c.requests.push_back({.prompt = random_tokens(plan, dice, prompt),
                            .max_new = std::min(plan.quick ? kQuickLong : kLong, room)});
    }
    c.engine = {.device = plan.device, .dtype = dtype, .page_size = 16, .page_order_seed = 5};
    c.engine.pages = pages_for(c.requests, c.engine.page_size);
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace

std::optional<InterpreterOptions> step_for(const ModelConfig& config,
                                           const std::vector<FaultRequest>& faults) {
  if (std::ranges::none_of(faults, [](const FaultRequest& fault) {
        return fault_of(fault).seat == Fault::Seat::instructions;
      }))
    return std::nullopt;
  return InterpreterOptions{make_schedule(scheduled_model(config), {.queues = 4, .kv_shares = 2})};
}

namespace {

// How a model is served for a fault.
struct Shared {
  int ranks = 1;
  bool by_rows = false;
};

// A fault can be one that only some layers, or only some numbers of ranks, can have; it refuses the
// others itself.
bool can_seed(const ModelConfig& config, const FaultRequest& request, const Shared& shared) {
  Ops ops = cpu_ops();
  Engine::Hooks hooks;
  try {
    std::optional<InterpreterOptions> step = step_for(config, {request});
    if (shared.ranks == 1) {
      seed_fault({ops, hooks, config, nullptr, nullptr, step ? &*step : nullptr}, request);
      return true;
    }
    RankPlan cut = plan_of(config, 1, shared.ranks);
    cut.by_rows = shared.by_rows;
    RankParts parts{.plan = cut};
    EngineOptions engine;
    const RankSeams seams{cut, parts, engine};
    seed_fault({ops, hooks, cut.local, nullptr, &seams}, request);
  } catch (const Error&) {
    return false;
  }
  return true;
}

// The least of ranks that can have a fault; nothing: none can.
std::optional<Shared> shared_for(const ModelConfig& config, const FaultRequest& request) {
  constexpr Shared kNone[] = {{}}, kSome[] = {{2}, {2, true}, {3}, {4}};
  const bool of_ranks = fault_of(request).seat == Fault::Seat::ranks;
  for (const Shared& shared : of_ranks ? std::span<const Shared>(kSome) : kNone)
    if (can_seed(config, request, shared)) return shared;
  return {};
}

}  // namespace

std::vector<SelftestPlan::Case> SelftestPlan::clean_cases(DType dtype) const {
  std::vector<SelftestPlan::Case> cases;
  for (int i = 0; i < (quick ? kQuickClean : kClean); ++i) {
    Dice dice(1000 + i);
    SelftestPlan::Case c{.name = fmt::format("clean {} {}", name_of(dtype), i)};
    const int64_t requests = i % 3 == 0 ? 1 : 1 + dice.below(8);
    for (int r = 0; r < requests; ++r)
      c.requests.push_back({.prompt = some_prompt(*this, dice, i + 7 * r),
                            .max_new = 1 + dice.below(4),
                            .arrival = dice.below(3)});
    c.engine = {.device = device, .dtype = dtype};
    // An option that says what values a selftest may draw is drawn without being named here.
    for_each_engine_option([&](const auto& option) {
      constexpr size_t draws = std::tuple_size_v<std::remove_cvref_t<decltype(option.draws)>>;
      if constexpr (draws > 0) c.engine.*option.member = dice.one_of(option.draws);
    });
    c.engine.pages = pages_for(c.requests, c.engine.page_size);
    // So few that requests wait or are preempted.
    if (i % 4 == 1) c.engine.pages = largest_need(c.requests, c.engine.page_size) + 2;
    cases.push_back(std::move(c));
  }
  std::ranges::move(long_cases(*this, dtype), std::back_inserter(cases));
  return cases;
}

SelftestPlan::Case SelftestPlan::detection_case(DType dtype) const {
  Dice dice(77);
  SelftestPlan::Case c{.name = fmt::format("detection {}", name_of(dtype))};
  for (const int64_t length : {quick ? 50 : 100, quick ? 40 : 80, 33, 17})
    c.requests.push_back(
        {.prompt =
             random_tokens(*this, dice, std::clamp<int64_t>(config.max_positions - 8, 1, length)),
         .max_new = 6});
  c.engine = {.device = device, .dtype = dtype, .page_size = 16, .page_order_seed = 3};
  c.engine.pages = pages_for(c.requests, c.engine.page_size);
  return c;
}

std::vector<int> SelftestPlan::fault_layers() const {
  const auto last = static_cast<int>(config.layers - 1);
  std::vector<int> layers =
      quick ? std::vector<int>{0, last} : std::vector<int>{0, last / 3, 2 * last / 3, last};
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

std::vector<SelftestPlan::Case> SelftestPlan::fault_cases(DType dtype) const {
  std::vector<SelftestPlan::Case> cases;
  for (const Fault& fault : faults()) {
    if (!fault.applies(config) || !can_have(fault.seat)) continue;
    for (int layer : fault.one_layer ? fault_layers() : std::vector<int>{-1})
      // Sizes end at the first 0; a fault without sizes has one run.
      for (size_t i = 0; i < fault.sizes.size() && (i == 0 || fault.sizes[i] != 0); ++i) {
        const FaultRequest request{std::string(fault.name), layer, fault.sizes[i]};
        const std::optional<Shared> shared = shared_for(config, request);
        if (!shared) continue;
        SelftestPlan::Case c = fault.one_layer ? mixed(*this, dtype) : crowded(*this, dtype);
        c.faults = {request};
        c.ranks = shared->ranks;
        c.by_rows = shared->by_rows;
        c.name = fmt::format("fault {} {} layer {} size {:g}", name_of(dtype), fault.name, layer,
                             fault.sizes[i]);
        cases.push_back(std::move(c));
      }
  }
  return cases;
}

std::vector<SelftestPlan::Case> SelftestPlan::several_cases(
    DType dtype, const std::vector<FaultRequest>& known) const {
  std::vector<SelftestPlan::Case> cases;
  for (int i = 0; i < (quick ? kQuickDraws : kDraws); ++i) {
    Dice dice(5000 + i);
    SelftestPlan::Case c = mixed(*this, dtype);
    const int64_t wanted = std::min<int64_t>(2 + dice.below(2), config.layers);
    std::vector<std::string> names;
    for (int64_t tries = 0; std::ssize(c.faults) < wanted && tries < 1000 && !known.empty();
         ++tries) {
      const FaultRequest& fault = known[dice.below(std::ssize(known))];
      // Two faults in one layer may hide each other.
      if (std::ranges::count(c.faults, fault.layer, &FaultRequest::layer) > 0) continue;
      c.faults.push_back(fault);
      names.push_back(fmt::format("{}@{}", fault.name, fault.layer));
    }
    if (std::ssize(c.faults) < 2) return {};
    c.name = fmt::format("several {} {}: {}", name_of(dtype), i, fmt::join(names, ", "));
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace lockstep
