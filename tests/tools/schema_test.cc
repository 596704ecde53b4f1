// A saved run judged under a schema that was asked for instead of the one it declares.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "src/judge/ledger.h"
#include "src/judge/story.h"
#include "src/report/report.h"
#include "src/session/judged_trace.h"
#include "src/session/options.h"
#include "tests/judged.h"
#include "tests/report/json_schema.h"

namespace lockstep {
namespace {

class AskedSchema : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = temp_path("asked.trace");
    JudgedRun run{.checkpoint = checkpoint(), .reference = open_reference()};
    run.engine.dtype = DType::bf16;
    run.requests = {{.prompt = some_tokens(20, checkpoint().config().vocab), .max_new = 2}};
    run.trace = path_;
    run.level = TraceLevel::full;
    ASSERT_EQ(judged(run).verdict, RunVerdict::clean);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(path_); }

  static const Checkpoint& checkpoint() {
    static const Checkpoint open = Checkpoint::open(data_path("bard-qwen3"));
    return open;
  }
  static Result judged_under(const std::string& schema, const std::string& layers = "") {
    JudgeOptions options;
    options.selection = Selection("", layers, "", "");
    options.contracts = contracts_of(schema);
    return judge_trace(path_, checkpoint(), std::move(options));
  }
  static bool says(const Result& result, const std::string& note) {
    return std::ranges::any_of(
        result.notes, [&](const std::string& n) { return n.find(note) != std::string::npos; });
  }

  static inline std::string path_;
};

TEST_F(AskedSchema, OfNoneIsTheDeclaredOne) {
  EXPECT_FALSE(contracts_of(""));
  const Result result = judged_under("");
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  EXPECT_FALSE(says(result, "asked for"));
}

TEST_F(AskedSchema, IsTakenForEveryPoint) {
  for (const char* schema : {"fused", "hf", "eager"}) {
    const auto all = contracts_of(schema);
    ASSERT_TRUE(all);
    EXPECT_EQ(all->size(), kPoints.size());
    // What rounds once is right, and no chain of roundings; the finding says which it would be.
    // Every op is searched for causes then, in each layer alike: two stand for all.
    const bool fused = schema == std::string("fused");
    const Result result = judged_under(schema, fused ? "" : "0-1");
    EXPECT_EQ(result.verdict, fused ? RunVerdict::clean : RunVerdict::diverged)
        << schema << ": " << result.story;
    EXPECT_TRUE(says(result, "asked for"));
    const Json rules = schema_of("result"), json = Json::parse(report_json(result));
    EXPECT_EQ(violation(json, rules, rules), "") << schema;
    if (fused) continue;
    ASSERT_TRUE(result.first);
    EXPECT_EQ(result.first->node.place.point->name, "attn.norm");
    EXPECT_NE(result.first->rule.find("would pass if it rounded as fused"), std::string::npos)
        << result.first->rule;
    // Such an op computes what it should, so that it looks like no bug.
    for (const PlaceSummary& place : result.places)
      EXPECT_TRUE(place.looks_like.empty())
          << schema << ", " << text_of(place.place) << ": " << text_of(place.looks_like);
  }
}

TEST_F(AskedSchema, OfAutoIsFound) {
  const Result result = judged_under("auto");
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  EXPECT_EQ(std::ranges::count(result.scope.found, "attn.norm"), 1);
  EXPECT_EQ(result.scope.contracts.at("attn.norm"), "fused");
}

}  // namespace
}  // namespace lockstep
