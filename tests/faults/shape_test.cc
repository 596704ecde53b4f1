// What the judge says about where a seeded fault's wrong elements lie is true of that fault.
#include <gtest/gtest.h>

#include "src/judge/verdict.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

struct Case {
  const char* fault;
  const char* where;     // part of what must be said
  double precision = 0;  // at least
};

// Two ragged requests over several permuted pages, in chunks of 16, prefill and decode.
Result run_with(const std::string& fault) {
  static const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const int64_t vocab = checkpoint.config().vocab;
  return judged(
      {.checkpoint = checkpoint,
       .reference = open_reference(),
       .engine = {.dtype = DType::bf16, .page_size = 16, .page_order_seed = 3, .chunk = 16},
       .requests = {{.prompt = some_tokens(21, vocab, 1), .max_new = 4},
                    {.prompt = some_tokens(38, vocab, 2), .max_new = 4}},
       .faults = {parse_fault(fault)}});
}

class Shape : public testing::TestWithParam<Case> {};

TEST_P(Shape, IsTrueOfTheFault) {
  const Case& c = GetParam();
  const Result result = run_with(c.fault);
  ASSERT_TRUE(result.first) << result.story;
  ASSERT_TRUE(result.first->shape) << result.story;
  const std::string where = result.first->shape->where;
  EXPECT_NE(where.find(c.where), std::string::npos) << result.story;
  EXPECT_GE(result.first->shape->precision, c.precision);
  EXPECT_GE(result.first->shape->recall, 0.99);
  EXPECT_NE(result.story.find("wrong: " + where), std::string::npos) << result.story;
  for (const Finding& f : result.findings)
    if (f.node.place == result.first->node.place && f.statistic == result.first->statistic) {
      EXPECT_EQ(f.shape.value().where, where);  // one rule a place
    }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, Shape,
    testing::Values(Case{"rope-interleaved@layer=3", "positions >= 1", 0.75},
                    Case{"rope-position-off-by-one-in-decode@layer=3", "in decode", 0.3},
                    Case{"rope-over-half-of-the-dims@layer=2", "dims d with d % 32 >= 16", 0.2},
                    Case{"gqa-map-modulo@layer=2", "heads h with h % 2 != h / 3", 0.9},
                    Case{"v-scale-of-another-head@layer=4", "heads 3..5", 0.9},
                    Case{"causal-mask-top-left@layer=1", "in passes that continue a request", 0.9},
                    Case{"wrong-page", "every request of a pass but its first", 0.9},
                    Case{"page-table-stride", "every request of a pass but its first", 0.9},
                    Case{"last-row-uses-row-before", "the last row of each request in a pass",
                         0.9}),
    [](const auto& info) {
      std::string name = info.param.fault;
      name = name.substr(0, name.find('@'));
      for (char& c : name)
        if (c == '-') c = '_';
      return name;
    });

TEST(ShapeOfEverything, IsNotSaid) {
  // A gain of twice everything separates nothing from nothing.
  const Result result = run_with("norm-gain-plus-one@layer=0");
  ASSERT_TRUE(result.first);
  EXPECT_FALSE(result.first->shape) << result.story;
}

}  // namespace
}  // namespace lockstep
