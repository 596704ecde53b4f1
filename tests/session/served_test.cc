// However requests are served - prefixes shared, requests preempted, pages permuted - a clean
// engine is judged clean.
#include <gtest/gtest.h>

#include "src/judge/verdict.h"
#include "tests/judged.h"
#include "tests/schedules.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

struct Case {
  std::string model;
  DType dtype;
};

class ServedRun : public testing::TestWithParam<Case> {
 protected:
  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam().model));

  void expect_clean(const EngineOptions& engine, std::vector<Request> requests,
                    const std::string& what) {
    EngineOptions there = engine;
    there.device = TestDevice::device();
    const Result result = judge_run({.checkpoint = checkpoint_,
                                     .reference = open_reference(),
                                     .engine = there,
                                     .requests = std::move(requests)});
    EXPECT_EQ(result.verdict, RunVerdict::clean) << what << ": " << result.story;
    EXPECT_EQ(result.judged, result.expected) << what;
    EXPECT_GT(result.judged, 0) << what;
    for (const std::string& note : result.notes)
      EXPECT_EQ(note.find("reference models stop"), std::string::npos) << what << ": " << note;
  }
};

class ScheduledRun : public ServedRun {};

TEST_P(ScheduledRun, OfRandomSchedulesIsClean) {
  // A judged one costs a second.
  for (const uint64_t seed : schedule_seeds(1))
    expect_clean(random_options(seed, GetParam().dtype),
                 family_of_eight(seed % 20, checkpoint_.config().vocab),
                 text_of_schedule(GetParam().model, seed));
}

TEST_P(ServedRun, OfASharedPrefixIsClean) {
  Request first{.prompt = some_tokens(40, checkpoint_.config().vocab), .max_new = 3};
  Request second = first;
  second.prompt[37] = 1;
  second.arrival = 4;
  expect_clean({.dtype = GetParam().dtype, .page_size = 8, .pages = 20, .prefix_cache = true},
               {first, second}, "prefix");
}

class DrawnRun : public ServedRun {};

TEST_P(DrawnRun, OfDrawnTokensAndSamplesIsClean) {
  std::vector<Request> requests = family_of_eight(9, checkpoint_.config().vocab);
  for (Request& r : requests) {
    r.sampling = {.temperature = 1.5, .repetition_penalty = 1.2, .seed = r.prompt.size()};
    r.samples = 2;
  }
  expect_clean({.dtype = GetParam().dtype, .page_size = 4, .pages = 30, .prefix_cache = true},
               requests, "drawn");
}

// Prompts past the positions of the checkpoint, in chunks: the keys depend on them.
class LengthsRun : public ServedRun {};

TEST_P(LengthsRun, OfTextsThatBeginAlikeIsClean) {
  std::vector<Request> requests(3, {.prompt = some_tokens(34, checkpoint_.config().vocab),
                                    .max_new = 6,
                                    .sampling = {.temperature = 2}});
  requests[1].prompt.push_back(7);
  requests[1].arrival = 4;
  requests[2].arrival = 14;
  EngineOptions options{.dtype = GetParam().dtype, .page_size = 5, .pages = 100, .chunk = 3};
  requests[0].samples = requests[2].samples = 3;
  expect_clean(options, requests, "forks");
  options.prefix_cache = true;
  for (const uint64_t schedule : {0, 5, 48}) {
    options.random_schedule_seed = schedule;
    expect_clean(options, requests, "prefixes, schedule " + std::to_string(schedule));
  }
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + "_" + std::string(name_of(info.param.dtype));
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Tables, LengthsRun,
                         testing::Values(Case{"tiny/qwen3-dynamic", DType::f16}), name_of_case);

const std::vector<Case> kMatrix = {{"bard-qwen3", DType::f32},   {"bard-qwen2.5", DType::f32},
                                   {"bard-qwen3", DType::f16},   {"bard-qwen3", DType::bf16},
                                   {"bard-qwen2.5", DType::f16}, {"bard-qwen2.5", DType::bf16}};

// Each model has each dtype in one of the two dearest ways to serve, and each way has all dtypes.
std::vector<Case> turns_of(bool first) {
  std::vector<Case> some;
  for (const Case& c : kMatrix)
    if (whole() || first == ((c.model == "bard-qwen3") == (c.dtype != DType::f16)))
      some.push_back(c);
  return some;
}

INSTANTIATE_TEST_SUITE_P(Matrix, ServedRun, testing::ValuesIn(kMatrix), name_of_case);
INSTANTIATE_TEST_SUITE_P(Matrix, ScheduledRun, testing::ValuesIn(turns_of(true)), name_of_case);
INSTANTIATE_TEST_SUITE_P(Matrix, DrawnRun, testing::ValuesIn(turns_of(false)), name_of_case);

}  // namespace
}  // namespace lockstep
