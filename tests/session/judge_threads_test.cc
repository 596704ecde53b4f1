// What a trace comes to does not depend on how many threads measure it.
#include <gtest/gtest.h>

#include <filesystem>

#include "src/session/judged_trace.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

// A trace of 300 rows of 576 elements, which are more than one thread is left with.
std::string traced(const Checkpoint& checkpoint, const std::string& fault) {
  const std::string path = temp_path("threads.trace");
  std::filesystem::remove_all(path);
  JudgedRun run{.checkpoint = checkpoint,
                .reference = open_reference(),
                .engine = {.dtype = DType::bf16},
                .requests = {{.prompt = some_tokens(300, checkpoint.config().vocab), .max_new = 2}},
                .trace = path,
                .level = TraceLevel::full};
  if (!fault.empty()) run.faults = {parse_fault(fault)};
  judged(run);
  return path;
}

TEST(JudgeThreads, ChangeNothing) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  for (const char* fault : {"", "one-element-off@layer=2,size=3"}) {
    const std::string path = traced(checkpoint, fault);
    const Result one = judge_trace(path, checkpoint, {.threads = 1});
    const Result three = judge_trace(path, checkpoint, {.threads = 3});
    std::filesystem::remove_all(path);
    EXPECT_EQ(one.verdict, *fault == 0 ? RunVerdict::clean : RunVerdict::diverged);
    EXPECT_EQ(one.judged, one.expected);
    EXPECT_EQ(three.story, one.story);
    EXPECT_EQ(three.limit_ratio, one.limit_ratio);
    ASSERT_EQ(three.findings.size(), one.findings.size());
    for (size_t i = 0; i < one.findings.size(); ++i) {
      EXPECT_EQ(three.findings[i].node.place, one.findings[i].node.place);
      EXPECT_EQ(three.findings[i].index, one.findings[i].index);
      EXPECT_EQ(three.findings[i].budgets, one.findings[i].budgets);
    }
  }
}

}  // namespace
}  // namespace lockstep
