// --judge-rows, from the command line to the words of the result.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/session/judged_trace.h"
#include "tests/judged.h"
#include "tests/lockstep_binary.h"

namespace lockstep {
namespace {

const std::string kModel = " --model " + data_path("bard-qwen3");
const std::string kPrompt =
    " --prompt 'ROMEO: What light through yonder window breaks? It is the east, and Juliet'";

TEST(JudgeRows, SaysWhatWasJudgedAndWhatThatShows) {
  const std::string json = temp_path("rows.json");
  const Outcome some =
      call_lockstep("run" + kModel + kPrompt + " -n 2 --judge-rows 4:7 --json " + json);
  EXPECT_EQ(some.status, 0) << some.out << some.err;
  EXPECT_NE(some.out.find("of a node at the least"), std::string::npos) << some.out;
  EXPECT_NE(some.out.find("shows with probability 0."), std::string::npos) << some.out;
  EXPECT_NE(some.out.find(" rows judged; "), std::string::npos) << some.out;
  EXPECT_EQ(some.out.find("\ntokens"), std::string::npos) << some.out;
  const auto rows = nlohmann::json::parse(text_of(json)).at("scope").at("rows");
  std::filesystem::remove(json);
  EXPECT_EQ(rows.at("most"), 4);
  EXPECT_EQ(rows.at("seed"), 7);
  EXPECT_EQ(rows.at("of_node"), 4);
  EXPECT_LT(rows.at("judged"), rows.at("expected"));
  EXPECT_LT(rows.at("power"), 1);
}

TEST(JudgeRows, FindsABugOfAllRows) {
  const Outcome wrong = call_lockstep("run" + kModel + kPrompt +
                                      " -n 2 --judge-rows 4 --fault rope-interleaved@layer=3");
  EXPECT_EQ(wrong.status, 1) << wrong.err;
  EXPECT_NE(wrong.out.find("diverged: layer 3 attn.q_rope"), std::string::npos) << wrong.out;
}

TEST(JudgeRows, ASavedTraceIsJudgedInTheSameRows) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const std::string path = temp_path("rows.trace");
  JudgedRun run{.checkpoint = checkpoint,
                .reference = open_reference(),
                .engine = {.dtype = DType::bf16},
                .requests = {{.prompt = some_tokens(40, checkpoint.config().vocab), .max_new = 2}},
                .faults = {parse_fault("one-element-off@layer=2,size=3")},
                .judge = {.rows = {.most = 30, .seed = 1}},
                .trace = path,
                .level = TraceLevel::full};
  const Result live = judged(run);
  const Result saved = judge_trace(path, checkpoint, {.rows = {.most = 30, .seed = 1}});
  std::filesystem::remove_all(path);
  EXPECT_EQ(saved.story, live.story);
  EXPECT_EQ(saved.scope.rows.judged, live.scope.rows.judged);
  EXPECT_EQ(saved.limit_ratio, live.limit_ratio);
}

TEST(JudgeRows, IsRefusedWhereAllRowsAreNeeded) {
  const std::string run = "run" + kModel + kPrompt + " -n 1 --judge-rows 4 ";
  for (const char* other : {"--confirm", "--error-budget"})
    EXPECT_EQ(trouble_of(run + other),
              std::string(other) +
                  " needs all rows of every node, and --judge-rows 4 leaves some out: give one of "
                  "the two\n");
  EXPECT_NE(trouble_of(run + "--modes all").find("--judge-rows"), std::string::npos);
  for (const char* text : {"0", "-1", "x", "4:", "4:x", "4:7:1"})
    EXPECT_TRUE(trouble_of("run" + kModel + kPrompt + " --judge-rows=" + text)
                    .starts_with("--judge-rows is a number of rows of a node"))
        << text;
}

}  // namespace
}  // namespace lockstep
