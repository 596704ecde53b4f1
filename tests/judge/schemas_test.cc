// Which rounding a trace that declares none is held to.
#include "src/judge/schemas.h"

#include <gtest/gtest.h>

#include "src/judge/judge.h"
#include "tests/judge/fake_model.h"

namespace lockstep {
namespace {

std::vector<NodeOutcome> outcomes(std::initializer_list<Verdict> verdicts) {
  std::vector<NodeOutcome> all;
  for (const Verdict verdict : verdicts) all.emplace_back().verdict = verdict;
  return all;
}

constexpr auto kFits = Verdict::rounding, kFails = Verdict::introduced;

TEST(SchemasTest, ADeclaredOneIsTheOnlyCandidate) {
  const Schemas schemas(
      {{"attn.norm", Schema::hf}, {"attn.q", Schema::hf}, {"mlp.act", Schema::eager}});
  ASSERT_EQ(schemas.candidates(point("attn.norm")).size(), 1u);
  EXPECT_EQ(schemas.of(point("attn.norm")), Schema::hf);
  EXPECT_EQ(schemas.of(point("attn.q")), Schema::fused);  // a product has no other
  EXPECT_EQ(schemas.of(point("mlp.act")), Schema::hf);
  EXPECT_EQ(schemas.candidates(point("mlp.norm")).size(), 2u);
  EXPECT_EQ(schemas.candidates(point("attn.out")).size(), 3u);
  EXPECT_TRUE(schemas.notes().empty());
}

TEST(SchemasTest, TheFirstLayersDecideAndTheOthersAreHeldToThem) {
  Schemas schemas({});
  const Point& p = point("attn.norm");
  for (int layer = 0; layer < 3; ++layer)
    EXPECT_EQ(schemas.choose({&p, layer}, outcomes({kFails, kFits}), true), 1u);
  EXPECT_EQ(schemas.of(p), Schema::hf);
  EXPECT_EQ(schemas.choose({&p, 3}, outcomes({kFails, kFits}), true), 1u);
  EXPECT_TRUE(schemas.strangers().empty());
  EXPECT_EQ(schemas.notes().at(0), "attn.norm is judged as hf, which it was found to be");
  // One that rounds once where the others round twice is another kernel.
  schemas.choose({&p, 4}, outcomes({kFits, kFits}), true);
  ASSERT_EQ(schemas.strangers().size(), 1u);
  EXPECT_EQ(schemas.strangers()[0].first.layer, 4);
}

TEST(SchemasTest, WhatTellsNothingDecidesNothing) {
  Schemas schemas({});
  const Point& p = point("attn.q_rope");
  for (int layer = 0; layer < 4; ++layer)  // one position that is not turned
    EXPECT_EQ(schemas.choose({&p, layer}, outcomes({kFits, kFits}), false), 0u);
  for (int layer = 0; layer < 4; ++layer)
    EXPECT_EQ(schemas.choose({&p, layer}, outcomes({kFails, kFits}), true), 1u);
  EXPECT_EQ(schemas.of(p), Schema::hf);
  EXPECT_TRUE(schemas.strangers().empty());
}

TEST(SchemasTest, ABugInALayerDoesNotMakeASchema) {
  Schemas schemas({});
  const Point& p = point("mlp.norm");
  schemas.choose({&p, 0}, outcomes({kFails, kFits}), true);  // hides behind the looser one
  schemas.choose({&p, 1}, outcomes({kFits, kFits}), true);
  schemas.choose({&p, 2}, outcomes({kFits, kFits}), true);
  EXPECT_EQ(schemas.of(p), Schema::fused);
  ASSERT_EQ(schemas.strangers().size(), 1u);
  EXPECT_EQ(schemas.strangers()[0].first.layer, 0);
  EXPECT_EQ(schemas.choose({&p, 3}, outcomes({kFails, kFits}), true), 0u);  // and is found now
  EXPECT_EQ(schemas.choose({&p, 4}, outcomes({kFails, kFails}), true), 0u);
}

Result judged(FakeRun run) {
  FakeOracle oracle;
  Judge judge(run.manifest, oracle, nullptr, nullptr, {});
  for (const Pass& pass : run.passes) judge.judge(pass);
  return judge.finish(run.requests, true);
}

TEST(Undeclared, OneRoundingIsJudgedAsFused) {
  FakeModel model(DType::bf16);
  FakeRun run = fake_run(model, DType::bf16);
  run.manifest.schema.clear();
  const Result result = judged(run);
  EXPECT_EQ(result.verdict, "clean") << result.story;
  EXPECT_EQ(
      std::ranges::count(result.notes, "attn.norm is judged as fused, which it was found to be"),
      1);
}

TEST(Undeclared, TwoKernelsForOnePointAreAFinding) {
  // One layer of two rounds silu(gate) before it is multiplied.
  FakeModel model(DType::bf16, [](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (p.point->name != "mlp.act" || p.layer != 1) return;
    for (size_t i = 0; i < v.size(); ++i)
      v[i] *= 1 + (static_cast<double>(i * 7 % 11) - 5) * 0x1p-12;
  });
  FakeRun run = fake_run(model, DType::bf16);
  run.manifest.schema.clear();
  const Result result = judged(run);
  EXPECT_EQ(result.verdict, "diverged") << result.story;
  ASSERT_TRUE(result.first);
  EXPECT_EQ(text_of(result.first->place), "layer 1 mlp.act") << result.story;
}

}  // namespace
}  // namespace lockstep
