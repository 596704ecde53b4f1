// Results of runs come back from their JSON as they were.
#include <gtest/gtest.h>

#include <cmath>

#include "src/report/output.h"
#include "src/report/report.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

class ResultOfARun : public testing::Test {
 protected:
  Result run(const std::vector<FaultRequest>& faults, Ops ops = cpu_ops()) {
    return judged(
        {.checkpoint = checkpoint_,
         .reference = open_reference(),
         .engine = {.dtype = DType::bf16},
         .ops = std::move(ops),
         .requests = {{.prompt = some_tokens(19, checkpoint_.config().vocab), .max_new = 3}},
         .faults = faults});
  }
  static void expect_back(const Result& result) {
    const std::string json = report_json(result);
    const Result back = result_from_json(json, "result.json");
    EXPECT_EQ(back.verdict, result.verdict);
    EXPECT_EQ(report_json(back), json);
    for (const char* format : {"table", "csv"}) EXPECT_EQ(text(back, format), text(result, format));
  }
  // JSON does not keep the sign of NaN, which people's text shows.
  static std::string text(const Result& result, const char* format) {
    std::string text = text_of(document_of(result), format);
    for (size_t at; (at = text.find("-nan")) != std::string::npos;) text.erase(at, 1);
    return text;
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path("bard-qwen3"));
};

TEST_F(ResultOfARun, ThatIsCleanComesBack) {
  const Result result = run({});
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  expect_back(result);
}

TEST_F(ResultOfARun, WithAFaultComesBack) {
  const Result result = run({parse_fault("rope-interleaved@layer=2")});
  EXPECT_EQ(result.verdict, RunVerdict::diverged) << result.story;
  EXPECT_TRUE(result.first->shape) << result.story;
  expect_back(result);
}

TEST_F(ResultOfARun, WithNumbersThatAreNotFiniteComesBack) {
  for (const int bits : {0x7fc0, 0x7f80, 0xff80}) {  // NaN, Infinity, -Infinity of bf16
    Ops ops = cpu_ops();
    ops.silu_mul = [bits, right = ops.silu_mul](const OpContext& context, TensorView out,
                                                auto... inputs) {
      right(context, out, inputs...);
      out.as<uint16_t>()[0] = static_cast<uint16_t>(bits);
    };
    const Result result = run({}, std::move(ops));
    ASSERT_TRUE(result.first) << result.story;
    EXPECT_FALSE(std::isfinite(result.first->got));
    expect_back(result);
  }
}

}  // namespace
}  // namespace lockstep
