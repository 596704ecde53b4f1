// What is judged does not depend on how many threads measure it.
#include <gtest/gtest.h>

#include "tests/judged.h"

namespace lockstep {
namespace {

TEST(JudgeThreads, ChangeNothing) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  // 300 rows of 576 elements are more than one thread is left with.
  for (const char* fault : {"", "one-element-off@layer=2,size=3", "rope-tables-16-bit@layer=1"}) {
    std::vector<Result> results;
    for (const int threads : {1, 3}) {
      JudgedRun run{
          .checkpoint = checkpoint,
          .reference = open_reference(),
          .engine = {.dtype = DType::bf16, .threads = threads},
          .requests = {{.prompt = some_tokens(300, checkpoint.config().vocab), .max_new = 2}}};
      if (*fault != 0) run.faults = {parse_fault(fault)};
      results.push_back(judged(run));
    }
    const auto& [one, three] = std::tie(results[0], results[1]);
    EXPECT_EQ(one.verdict, *fault == 0 ? "clean" : "diverged");
    EXPECT_EQ(three.story, one.story);
    EXPECT_EQ(three.strain, one.strain);
    ASSERT_EQ(three.findings.size(), one.findings.size());
    for (size_t i = 0; i < one.findings.size(); ++i) {
      EXPECT_EQ(three.findings[i].place, one.findings[i].place);
      EXPECT_EQ(three.findings[i].index, one.findings[i].index);
      EXPECT_EQ(three.findings[i].budgets, one.findings[i].budgets);
    }
  }
}

}  // namespace
}  // namespace lockstep
