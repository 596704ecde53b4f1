// JSON that commands print, held to the documents in tools/schemas.
#include <filesystem>

#include "tests/lockstep_binary.h"
#include "tests/report/json_schema.h"
#include "tests/tools/written_trace.h"

namespace lockstep {
namespace {

// What is wrong with what the call printed, by the document of that kind.
std::string violation_of(const std::string& kind, const std::string& arguments) {
  const Outcome outcome = call_lockstep(arguments + " --format json");
  EXPECT_TRUE(outcome.status == 0 || outcome.status == 1) << outcome.err;
  const Json rules = schema_of(kind);
  return violation(Json::parse(outcome.out), rules, rules);
}

TEST(Json, OfTablesFitsItsSchema) {
  const std::string model = data_path("bard-qwen3");
  EXPECT_EQ(violation_of("points", "points"), "");
  EXPECT_EQ(violation_of("faults", "faults"), "");
  EXPECT_EQ(violation_of("model", "model " + model), "");
  EXPECT_EQ(violation_of("schedule", "schedule --model " + model), "");
  EXPECT_EQ(violation_of("schedule-check", "schedule --check --model " + model), "");
  const std::string generate = "generate --model " + model + " --max-new 2 --logprobs 2 ";
  EXPECT_EQ(violation_of("generate", generate + "--prompt 'To be'"), "");
  EXPECT_NE(violation_of("faults", "points"), "");
}

TEST(Json, OfTracesFitsItsSchema) {
  const std::string a = temp_path("a.trace"), b = temp_path("b.trace");
  for (const std::string& path : {a, b}) std::filesystem::remove_all(path);
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  write_trace(a, serve(checkpoint, {.dtype = DType::bf16}, {{.prompt = {5, 6, 7}, .max_new = 2}}));
  write_trace(b, serve(checkpoint, {.dtype = DType::bf16}, {{.prompt = {5, 6, 8}, .max_new = 2}}));
  EXPECT_EQ(violation_of("inspect", "inspect " + a), "");
  EXPECT_EQ(violation_of("inspect", "inspect " + a + " --point 'attn.*' --layer 1"), "");
  EXPECT_EQ(violation_of("inspect", "inspect " + a + " --point attn.q --layer 1 --values"), "");
  EXPECT_EQ(violation_of("diff", "diff " + a + " " + a), "");
  EXPECT_EQ(violation_of("diff", "diff " + a + " " + b), "");

  // Both have pages too: one of its own, and one of what is in the trace.
  const std::string page = temp_path("page.html");
  EXPECT_EQ(call_lockstep("diff " + a + " " + a + " --html " + page).status, 0);
  EXPECT_NE(text_of(page).find("two traces against each other"), std::string::npos);
  EXPECT_EQ(call_lockstep("report " + a + " --html " + page).status, 0);
  EXPECT_NE(text_of(page).find("attn.q_rope"), std::string::npos);
  EXPECT_NE(trouble_of("report " + data_path("bard-qwen3/config.json") + " --html " + page), "");
  EXPECT_NE(
      trouble_of("report " + temp_path("none.json") + " --html " + page).find("cannot be opened"),
      std::string::npos);
  EXPECT_NE(trouble_of("report " + page + " --html " + page).find("two files"), std::string::npos);
  for (const std::string& path : {a, b, page}) std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace lockstep
