// However requests are served - prefixes shared, requests preempted, pages permuted - a clean
// engine is judged clean.
#include <gtest/gtest.h>

#include <random>

#include "src/judge/verdict.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

struct Case {
  std::string model;
  DType dtype;
};

class ServedRun : public testing::TestWithParam<Case> {
 protected:
  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam().model));

  std::vector<Request> family(uint64_t seed) {
    const int64_t vocab = checkpoint_.config().vocab;
    std::mt19937_64 random(seed);
    std::vector<Request> requests;
    for (int i = 0; i < 5; ++i) {
      Request r{.prompt = some_tokens(static_cast<int64_t>(random() % 3) * 9, vocab, i % 2),
                .max_new = 1 + static_cast<int64_t>(random() % 5),
                .arrival = static_cast<int64_t>(random() % 6)};
      for (int32_t token : some_tokens(1 + static_cast<int64_t>(random() % 12), vocab, 50 + i % 3))
        r.prompt.push_back(token);
      requests.push_back(std::move(r));
    }
    return requests;
  }

  void expect_clean(const EngineOptions& engine, std::vector<Request> requests,
                    const std::string& what) {
    const Result result = judge_run({.checkpoint = checkpoint_,
                                     .reference = open_reference(),
                                     .engine = engine,
                                     .requests = std::move(requests)});
    EXPECT_EQ(result.verdict, "clean") << what << ": " << result.story;
    EXPECT_EQ(result.judged, result.expected) << what;
    EXPECT_GT(result.judged, 0) << what;
    for (const std::string& note : result.notes)
      EXPECT_EQ(note.find("reference models stop"), std::string::npos) << what << ": " << note;
  }
};

TEST_P(ServedRun, OfRandomSchedulesIsClean) {
  for (uint64_t seed = 1; seed <= 6; ++seed)
    expect_clean({.dtype = GetParam().dtype,
                  .page_size = 4,
                  .pages = 18,
                  .page_order = seed,
                  .budget = seed % 2 == 0 ? 9 : 0,
                  .prefix_cache = seed % 3 != 0,
                  .preempt = seed % 2 == 0 ? Preempt::swap : Preempt::recompute,
                  .schedule = seed},
                 family(seed), "schedule " + std::to_string(seed));
}

TEST_P(ServedRun, OfASharedPrefixIsClean) {
  Request first{.prompt = some_tokens(40, checkpoint_.config().vocab), .max_new = 3};
  Request second = first;
  second.prompt[37] = 1;
  second.arrival = 4;
  expect_clean({.dtype = GetParam().dtype, .page_size = 8, .pages = 20, .prefix_cache = true},
               {first, second}, "prefix");
}

TEST_P(ServedRun, OfDrawnTokensAndSamplesIsClean) {
  std::vector<Request> requests = family(9);
  for (Request& r : requests) {
    r.sampling = {.temperature = 1.5, .repetition_penalty = 1.2, .seed = r.prompt.size()};
    r.samples = 2;
  }
  expect_clean({.dtype = GetParam().dtype, .page_size = 4, .pages = 24, .prefix_cache = true},
               requests, "drawn");
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + "_" + std::string(name_of(info.param.dtype));
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, ServedRun,
    testing::Values(Case{"bard-qwen3", DType::f32}, Case{"bard-qwen2.5", DType::f32},
                    Case{"bard-qwen3", DType::f16}, Case{"bard-qwen3", DType::bf16},
                    Case{"bard-qwen2.5", DType::f16}, Case{"bard-qwen2.5", DType::bf16}),
    name_of_case);

}  // namespace
}  // namespace lockstep
