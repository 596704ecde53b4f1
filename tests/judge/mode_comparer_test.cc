// Two hand-made runs side by side.
#include "src/judge/mode_comparer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/weights/qwen_graph.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

const Graph kGraph = qwen_graph({});  // embed, final.norm, logits, token

// A run of one request of three tokens, [3, 4] at embed and final.norm, [1, 8] logits.
class Lined : public testing::Test {
 protected:
  std::vector<float> embed_ = std::vector<float>(12, 1.5f);
  std::vector<float> norm_ = std::vector<float>(12, .25f);
  std::vector<float> logits_ = {1, 2, 3, 4, 5, 6, 7, 8};
  int32_t token_ = 7;

  PassInfo info(int32_t request) const {
    PassInfo pass;
    for (int32_t p = 0; p < 3; ++p) pass.rows.push_back({{request, p}, 5, p});
    pass.logit_rows = {2};
    return pass;
  }
  // Shows the four tensors, or all but one.
  void show(Sink& sink, int32_t request, const Point* left_out = nullptr) {
    Probe probe(&sink);
    probe.begin(info(request));
    const auto view = [](std::vector<float>& of, int64_t rows) {
      return TensorView{of.data(), DType::f32, Device::cpu, {rows, std::ssize(of) / rows}};
    };
    if (left_out != &point("embed")) probe(point("embed"), -1, view(embed_, 3));
    if (left_out != &point("final.norm")) probe(point("final.norm"), -1, view(norm_, 3));
    if (left_out != &point("logits")) probe.logits(point("logits"), view(logits_, 1));
    probe.logits(point("token"), {&token_, DType::i32, Device::cpu, {1}});
    probe.end();
    EXPECT_EQ(probe.failure(), "");
  }
  void take_base() {
    Recorder recorder({}, false, [this](Pass pass) { base_.add(std::move(pass)); });
    show(recorder, 0);
  }
  Result line_up(int32_t request = 1, const Point* left_out = nullptr) {
    Ledger ledger(kGraph);
    ModeComparer lineup(base_, {"one", "other", {-1, 0}}, ledger);
    show(lineup, request, left_out);
    return ledger.result();
  }

  BaselineRows base_{kGraph};
};

int64_t count(const Result& result, Verdict verdict) { return result.counts[verdict]; }

TEST_F(Lined, EqualRunsAreBitwise) {
  take_base();
  const Result result = line_up();
  EXPECT_EQ(result.expected, 4);
  EXPECT_EQ(count(result, Verdict::bitwise), 4);
}

TEST_F(Lined, WhatIsEquallyNoNumberIsNoDifference) {
  // Beside it one sum is taken in another order, and one is wrong.
  for (const float none : {std::nanf(""), INFINITY}) {
    logits_ = {1, 2, 3, 4, 5, 6, none, 8};
    base_ = BaselineRows(kGraph);
    take_base();
    logits_[1] = std::nextafter(2.f, 3.f);
    EXPECT_EQ(count(line_up(), Verdict::introduced), 0);
    logits_[1] = 2.5f;
    const Result result = line_up();
    ASSERT_EQ(count(result, Verdict::introduced), 1);
    EXPECT_EQ(result.first->index.back(), 1);
  }
}

TEST_F(Lined, StrangersAreNotCompared) {
  take_base();
  embed_.assign(12, 9.f);
  EXPECT_EQ(line_up(0).expected, 0);
  EXPECT_EQ(embed_[0], 9.f) << "and keep their numbers";
}

TEST_F(Lined, AnOpThatMustBeBitwiseMayNotDifferByOneUlp) {
  take_base();
  norm_[6] = std::nextafter(norm_[6], 1.f);
  const Result result = line_up();
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.findings.size(), 1u);
  EXPECT_EQ(result.first->node.place.point->name, "final.norm");
  EXPECT_EQ(result.first->index, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(result.first->statistic, StatisticKind::bits);
  EXPECT_EQ(result.first->want, .25);
  EXPECT_EQ(norm_[6], .25f) << "what follows gets the base's row";
}

TEST_F(Lined, AProductMayDifferByTwoBudgetsAndNoMore) {
  take_base();
  const double rms = std::sqrt((1 + 4 + 9 + 16 + 25 + 36 + 49 + 64) / 8.0);
  const double sums = 2 * 8 * 4 * 0x1p-24 * rms;  // K = 4
  logits_[0] = static_cast<float>(1 + .9 * sums);
  Result result = line_up();
  EXPECT_EQ(count(result, Verdict::rounding), 1);
  EXPECT_TRUE(result.findings.empty());
  logits_[0] = static_cast<float>(1 + 1.2 * sums);
  result = line_up();
  ASSERT_EQ(result.findings.size(), 1u);
  EXPECT_EQ(result.findings[0].statistic, StatisticKind::max_error);
  EXPECT_NEAR(result.findings[0].budgets, 1.2, .1);
  EXPECT_EQ(result.findings[0].position, 2);
}

TEST_F(Lined, NanIsNeverWithin) {
  take_base();
  logits_[3] = NAN;
  const Result result = line_up();
  ASSERT_EQ(result.findings.size(), 1u);
  EXPECT_TRUE(std::isnan(result.findings[0].got));
  EXPECT_TRUE(std::isinf(result.findings[0].budgets));
}

TEST_F(Lined, NanOnBothSidesIsAlikeByItsBits) {
  logits_[3] = NAN;
  take_base();
  EXPECT_EQ(count(line_up(), Verdict::bitwise), 4);
}

TEST_F(Lined, WhatIsMissingIsStructural) {
  take_base();
  const Result result = line_up(1, &point("logits"));
  EXPECT_EQ(result.expected, 4);
  ASSERT_EQ(result.findings.size(), 1u);
  EXPECT_EQ(result.findings[0].verdict, Verdict::structural);
  EXPECT_EQ(result.findings[0].node.place.point->name, "logits");
}

TEST_F(Lined, AnotherShapeIsStructural) {
  take_base();
  logits_.push_back(9);
  const Result result = line_up();
  ASSERT_EQ(result.findings.size(), 1u);
  EXPECT_EQ(result.findings[0].verdict, Verdict::structural);
  EXPECT_NE(result.findings[0].rule.find("[1, 8]"), std::string::npos);
}

TEST_F(Lined, RowsThatTheBaseNeverShowedAreStructural) {
  const Result result = line_up();
  EXPECT_EQ(result.findings.size(), 4u);
  EXPECT_NE(result.findings[0].rule.find("one computed no such row"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
