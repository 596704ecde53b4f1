// Random requests and random legal ways to serve them, each named by its seed.
#pragma once

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "src/engine/engine.h"
#include "tests/helpers.h"

namespace lockstep {

// Eight requests in families that share a beginning, two of them with a second sample, which is a
// fork of the first.
inline std::vector<Request> family_of_eight(uint64_t seed, int64_t vocab) {
  std::mt19937_64 random(seed);
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request r{.prompt = some_tokens(static_cast<int64_t>(random() % 3) * 9, vocab, i % 2),
              .max_new = 1 + static_cast<int64_t>(random() % 6),
              .arrival = static_cast<int64_t>(random() % 8)};
    for (int32_t token : some_tokens(1 + static_cast<int64_t>(random() % 12), vocab, 50 + i % 3))
      r.prompt.push_back(token);
    r.samples = i % 4 == 1 ? 2 : 1;
    requests.push_back(std::move(r));
  }
  return requests;
}

// Page sizes, chunks, budgets, prefix cache and preemption by chance, and a random schedule, in a
// pool between what the largest request needs and what all need: pages run out often.
inline EngineOptions random_options(uint64_t seed, DType dtype) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::initializer_list<int64_t> of) {
    return *(of.begin() + static_cast<long>(random() % of.size()));
  };
  EngineOptions options{.dtype = dtype};
  options.page_size = pick({1, 2, 4, 16});
  options.chunk = pick({0, 1, 5, 16});
  options.max_batched_tokens = pick({0, 3, 20});
  options.max_batch = pick({0, 2, 5});
  options.prefix_cache = pick({0, 1}) == 1;
  options.preempt = pick({0, 1}) == 1 ? Preempt::swap : Preempt::recompute;
  options.page_order_seed = 1 + random() % 1000;
  options.random_schedule_seed = seed;
  options.threads = 1;
  options.pages = (40 + static_cast<int64_t>(random() % 60)) / options.page_size + 2;
  return options;
}

inline std::string text_of_schedule(const std::string& model, uint64_t seed) {
  return model + ", random_options(" + std::to_string(seed) + ")";
}

// Seeds of random schedules, spread over 200: `usual` of them, or as many as LOCKSTEP_SCHEDULES in
// the environment says.
inline std::vector<uint64_t> schedule_seeds(uint64_t usual) {
  constexpr uint64_t kSchedules = 200;
  const char* wanted = std::getenv("LOCKSTEP_SCHEDULES");
  const uint64_t count = wanted != nullptr ? std::stoul(wanted) : usual;
  std::vector<uint64_t> seeds;
  for (uint64_t i = 1; i <= count; ++i) seeds.push_back(i * kSchedules / count);
  return seeds;
}

}  // namespace lockstep
