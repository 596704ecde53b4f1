// Which rounding a trace that declares none is held to.
#include "src/judge/contracts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "src/judge/judge.h"
#include "tests/judge/fake_model.h"

namespace lockstep {
namespace {

using enum RoundingContract;

constexpr ContractTraits kBf16 = {.dtype = DType::bf16}, kFp32 = {.dtype = DType::f32};

TEST(ContractsOfAnOp, AreThoseThatDifferForIt) {
  EXPECT_EQ(candidates_of(OpKind::linear, kBf16), std::vector{fused});
  EXPECT_EQ(candidates_of(OpKind::linear, {DType::bf16, true}),
            (std::vector{fused, bias_after_store}));
  EXPECT_EQ(candidates_of(OpKind::norm, kBf16).size(), 4u);
  for (const OpKind op : {OpKind::norm, OpKind::rope, OpKind::attention, OpKind::silu_mul})
    EXPECT_EQ(candidates_of(op, kFp32), std::vector{fused})
        << "fp32 has no roundings to tell apart";
  // Operands in fewer bits are wrong unless somebody says that they are meant.
  const auto products = contracts_of(OpKind::linear, kFp32);
  EXPECT_EQ(std::ranges::count(products, tf32), 1);
  EXPECT_EQ(candidates_of(OpKind::linear, kFp32), std::vector{fused});
}

TEST(ContractsOfAnOp, StandForTheNearestThatItHas) {
  EXPECT_EQ(meant_by(eager, OpKind::norm, kBf16), hf);
  EXPECT_EQ(meant_by(eager, OpKind::attention, kBf16), eager);
  EXPECT_EQ(meant_by(eager_query_rounded, OpKind::attention, kBf16), eager_query_rounded);
  EXPECT_EQ(meant_by(eager_query_rounded, OpKind::norm, kBf16), hf);
  EXPECT_EQ(meant_by(hf, OpKind::linear, kBf16), fused);
  EXPECT_EQ(meant_by(hf_unrounded_sum, OpKind::silu_mul, kBf16), hf);
  EXPECT_EQ(meant_by(tf32, OpKind::linear, kFp32), tf32);
  EXPECT_EQ(meant_by(tf32, OpKind::linear, kBf16), fused);
  EXPECT_EQ(meant_by(hf, OpKind::norm, kFp32), fused);
}

// Outcomes of a node under fused and hf.
std::vector<NodeOutcome> outcomes(bool as_fused, bool as_hf) {
  std::vector<NodeOutcome> both(2);
  both[0].verdict = as_fused ? Verdict::rounding : Verdict::introduced;
  both[1].verdict = as_hf ? Verdict::rounding : Verdict::introduced;
  return both;
}
constexpr RoundingContract kTried[] = {fused, hf};
const Point& kPoint = point("attn.q_rope");

TEST(Chosen, IsWhatMostPlacesFit) {
  Contracts contracts({});
  for (int layer = 0; layer < 5; ++layer)
    contracts.add({&kPoint, layer}, kTried, outcomes(layer == 2, layer != 2));
  contracts.decide();
  EXPECT_EQ(contracts.of(kPoint), hf);
  EXPECT_EQ(contracts.chosen({&kPoint, 0}), 1u);
  // One that rounds once where the others round twice is another kernel, judged as what it is.
  EXPECT_EQ(contracts.chosen({&kPoint, 2}), 0u);
  ASSERT_EQ(contracts.inconsistent_layers().size(), 1u);
  EXPECT_EQ(contracts.inconsistent_layers()[0].first.layer, 2);
}

// One that fits all layers may excuse a wrong one.
TEST(Chosen, IsSaidToBeInDoubtWhereAStricterOneFitsMoreLayersThanNot) {
  const auto said = [&](int fit, const Point& at = kPoint) {
    Contracts contracts({});
    for (int layer = 0; layer < 6; ++layer)
      contracts.add({&at, layer}, kTried, outcomes(layer < fit, true));
    contracts.decide();
    return contracts.divided();
  };
  const auto all = said(5);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].first, &kPoint);
  EXPECT_EQ(
      all[0].second,
      "attn.q_rope rounds as fused in layers 0, 1, 2, 3, 4, and as hf in layers 5: one kernel "
      "rounds in one way, and the layers judged do not say which; --rounding "
      "attn.q_rope=fused shows what is wrong if it is that");
  EXPECT_EQ(said(4).size(), 1u);
  for (const int fit : {0, 1, 3, 6}) EXPECT_TRUE(said(fit).empty()) << fit;
  EXPECT_TRUE(said(5, point("attn.norm")).empty());
}

TEST(Chosen, ReadsWhatWasStoredWhereThatFitsMostLayers) {
  constexpr RoundingContract kOfNorm[] = {hf, hf_unrounded_sum};
  const Point& norm = point("mlp.norm");
  const auto chosen_of = [&](int fit, bool unstored) {
    Contracts contracts({});
    for (int layer = 0; layer < 5; ++layer) {
      std::vector<NodeOutcome> both = outcomes(layer < fit, true);
      both[1].reads_unstored = unstored;
      contracts.add({&norm, layer}, kOfNorm, both);
    }
    contracts.decide();
    return std::pair(contracts.of(norm), contracts.chosen({&norm, 4}));
  };
  EXPECT_EQ(chosen_of(4, true), std::pair(hf, size_t{0})) << "layer 4 stays wrong";
  EXPECT_EQ(chosen_of(2, true), std::pair(hf_unrounded_sum, size_t{1}));
  EXPECT_EQ(chosen_of(4, false), std::pair(hf_unrounded_sum, size_t{1}));
}

// Where the sum is hidden as well, either has room: such layers say nothing of who reads what.
TEST(Chosen, IsNotVotedForByLayersOfWhichNoSumIsKnown) {
  constexpr RoundingContract kOfNorm[] = {fused, unrounded_sum};
  const Point& norm = point("mlp.norm");
  Contracts contracts({});
  for (int layer = 0; layer < 8; ++layer) {
    std::vector<NodeOutcome> both = outcomes(layer < 6, true);
    both[1].reads_unstored = layer >= 6;
    contracts.add({&norm, layer}, kOfNorm, both);
  }
  contracts.decide();
  EXPECT_EQ(contracts.of(norm), unrounded_sum);
  for (int layer = 0; layer < 8; ++layer) EXPECT_EQ(contracts.chosen({&norm, layer}), 1u) << layer;
}

TEST(Chosen, AmongThoseThatFitEquallyIsTheStrictest) {
  Contracts contracts({});
  for (int layer = 0; layer < 3; ++layer)  // as of prompts of one token, which nothing turns
    contracts.add({&kPoint, layer}, kTried, outcomes(true, true));
  contracts.decide();
  EXPECT_EQ(contracts.of(kPoint), fused);
  EXPECT_TRUE(contracts.inconsistent_layers().empty());
}

TEST(Chosen, IsNotAffectedByPlacesThatFitNone) {
  Contracts contracts({});
  for (int layer = 0; layer < 2; ++layer)
    contracts.add({&kPoint, layer}, kTried, outcomes(true, false));
  for (int layer = 2; layer < 6; ++layer) {  // wrong in most nodes, and like hf in one
    contracts.add({&kPoint, layer}, kTried, outcomes(false, true));
    contracts.add({&kPoint, layer}, kTried, outcomes(false, false));
  }
  contracts.decide();
  EXPECT_EQ(contracts.of(kPoint), fused);
  EXPECT_EQ(contracts.chosen({&kPoint, 3}), 0u);
  EXPECT_TRUE(contracts.inconsistent_layers().empty());
}

TEST(Chosen, WhereEveryPlaceIsWrongIsWhatMostNodesFit) {
  Contracts contracts({});
  for (int layer = 0; layer < 3; ++layer) {
    for (int node = 0; node < 5; ++node)
      contracts.add({&kPoint, layer}, kTried, outcomes(false, true));
    contracts.add({&kPoint, layer}, kTried, outcomes(false, false));
  }
  contracts.decide();
  EXPECT_EQ(contracts.of(kPoint), hf);
}

TEST(Chosen, CountsWhatOnlyAllNodesTogetherShow) {
  Contracts contracts({});
  for (int layer = 0; layer < 3; ++layer) {
    contracts.add({&kPoint, layer}, kTried, outcomes(true, true));
    contracts.add_misfit({&kPoint, layer}, 0);
  }
  contracts.decide();
  EXPECT_EQ(contracts.of(kPoint), hf);
}

// Outcomes of shares by layer: which of the contracts each of them fits.
struct Fitting {
  bool as_fused, as_hf;
};
void add(Contracts& contracts, const Point& at, const std::vector<Fitting>& layers) {
  for (size_t layer = 0; layer < layers.size(); ++layer)
    contracts.add({&at, static_cast<int>(layer)}, kTried,
                  outcomes(layers[layer].as_fused, layers[layer].as_hf));
}
const Point &kPartial = point("attn.partial"), &kLse = point("attn.lse"), &kOut = point("attn.out");

constexpr Fitting kBoth{true, true}, kAsHf{false, true}, kNeither{false, false};

// What is wrong by less than weights that are rounded would be.
TEST(OfShares, IsTheStrictestThatMostLayersFit) {
  for (const Point* at : {&kPartial, &kLse}) {
    Contracts contracts({});
    add(contracts, *at, {kBoth, kAsHf, kBoth});
    contracts.decide();
    EXPECT_EQ(contracts.of(*at), fused);
    EXPECT_EQ(contracts.chosen({at, 1}), 0u) << "the layer is wrong, not of another kind";
    EXPECT_TRUE(contracts.inconsistent_layers().empty());
  }
  Contracts contracts({});
  add(contracts, kPartial, {kBoth, kAsHf, kAsHf});
  contracts.decide();
  EXPECT_EQ(contracts.of(kPartial), hf);
  EXPECT_TRUE(contracts.divided().empty());
}

// Of two layers one may be wrong by so little, or round less as its keys are few.
TEST(OfShares, IsDividedWhereAsManyLayersFitAStricterOne) {
  Contracts contracts({});
  add(contracts, kPartial, {kNeither, kBoth, kAsHf});
  add(contracts, kLse, {kNeither, kAsHf, kAsHf});
  contracts.decide();
  EXPECT_EQ(contracts.of(kPartial), hf);
  const auto divided = contracts.divided();
  ASSERT_EQ(divided.size(), 1u);
  EXPECT_TRUE(divided.front().second.starts_with(
      "attn.partial rounds as fused in layers 1, and as hf in layers 2: "))
      << divided.front().second;
  Contracts wrong({});
  add(wrong, kPartial, {kNeither, kNeither});
  wrong.decide();
  EXPECT_TRUE(wrong.divided().empty());
}

TEST(OfShares, IsNoLooserThanThatOfTheirPartialResults) {
  for (const Point* at : {&kLse, &kOut}) {
    SCOPED_TRACE(at->name);
    const auto found = [&](const std::vector<Fitting>& partial) {
      Contracts contracts({});
      add(contracts, kPartial, partial);
      add(contracts, *at, {kAsHf, kAsHf, kAsHf});
      contracts.decide();
      EXPECT_TRUE(contracts.inconsistent_layers().empty());
      EXPECT_EQ(contracts.chosen({at, 1}), contracts.of(*at) == hf ? 1u : 0u);
      return contracts.of(*at);
    };
    EXPECT_EQ(found({kBoth, kBoth, kBoth}), fused);
    EXPECT_EQ(found({kAsHf, kAsHf, kAsHf}), hf) << "a sum may be of rounded weights";
    EXPECT_EQ(found({kNeither, kNeither, kNeither}), hf) << "these say nothing";
    Contracts stricter({});
    add(stricter, kPartial, {kAsHf, kAsHf, kAsHf});
    add(stricter, *at, {kBoth, kBoth, kBoth});
    stricter.decide();
    EXPECT_EQ(stricter.of(*at), fused) << "a sum need not be";
    Contracts declared({{"attn.partial", fused}});
    add(declared, *at, {kAsHf, kAsHf, kAsHf});
    declared.decide();
    EXPECT_EQ(declared.of(*at), fused);
  }
}

// A kernel of prompts may round where that of decode steps, which are shared out, does not.
TEST(OfShares, DoNotBoundAttentionThatIsOfNone) {
  Contracts contracts({});
  add(contracts, kOut, {kAsHf, kAsHf, kAsHf});
  add(contracts, kPartial, {kBoth, kBoth, kBoth});
  add(contracts, kOut, {kBoth, kBoth, kBoth});
  contracts.decide();
  EXPECT_EQ(contracts.of(kPartial), fused);
  EXPECT_EQ(contracts.of(kOut), hf);
}

TEST(OfShares, IsTriedInEveryLayerAsTheStrictest) {
  Contracts contracts({});
  const std::vector<Fitting> wrong(4, kAsHf);
  add(contracts, kPartial, {kBoth, kBoth, kBoth, kBoth});
  add(contracts, kLse, wrong);
  add(contracts, kOut, wrong);
  for (const Point* at : {&kLse, &kOut}) EXPECT_FALSE(contracts.is_out({at, 9}, 0)) << at->name;
  Contracts without({});
  add(without, kOut, wrong);
  EXPECT_TRUE(without.is_out({&kOut, 9}, 0)) << "of no shares";
}

// `nodes` of each of `layers`.
void add(Contracts& contracts, std::vector<int> layers, int nodes, bool as_fused, bool as_hf) {
  for (const int layer : layers)
    for (int node = 0; node < nodes; ++node)
      contracts.add({&kPoint, layer}, kTried, outcomes(as_fused, as_hf));
}

TEST(Out, IsWhatFailsWhereAnotherNeverDoes) {
  Contracts contracts({});
  add(contracts, {0, 1}, 50, false, true);
  EXPECT_FALSE(contracts.is_out({&kPoint, 5}, 0)) << "two layers";
  add(contracts, {2}, 1, false, true);
  EXPECT_TRUE(contracts.is_out({&kPoint, 5}, 0));
  EXPECT_FALSE(contracts.is_out({&kPoint, 5}, 1));
  EXPECT_FALSE(contracts.is_out({&point("attn.k_rope"), 5}, 0))
      << "of another point nothing is known";
}

TEST(Out, IsNothingWhereEveryOneFails) {
  Contracts contracts({});
  add(contracts, {0}, 1, true, false);
  add(contracts, {1, 2, 3}, 50, false, true);
  EXPECT_FALSE(contracts.is_out({&kPoint, 6}, 0));
}

TEST(Out, IsNothingForTheFewerLayers) {
  Contracts contracts({});
  add(contracts, {3, 4, 5}, 1, true, true);
  add(contracts, {0, 1, 2}, 100, false, true);
  EXPECT_FALSE(contracts.is_out({&kPoint, 6}, 0)) << "three of six";
}

// Of a node that was judged under hf alone.
std::vector<NodeOutcome> untried_as_fused(bool as_hf) {
  std::vector<NodeOutcome> both = outcomes(true, as_hf);
  both[0].tried = false;
  return both;
}

TEST(Out, IsNoContractThatOthersFit) {
  Contracts contracts({});
  add(contracts, {0, 1, 2}, 1, false, true);
  for (int layer = 3; layer < 28; ++layer) {
    contracts.add({&kPoint, layer}, kTried, untried_as_fused(true));
    if (layer >= 10) contracts.add_misfit({&kPoint, layer}, 1);  // what only all nodes show
  }
  contracts.decide();
  EXPECT_EQ(contracts.of(kPoint), hf);
  EXPECT_TRUE(contracts.inconsistent_layers().empty());
  for (int layer = 0; layer < 28; ++layer) EXPECT_EQ(contracts.chosen({&kPoint, layer}), 1u);
}

TEST(Out, IsTriedOnWhereItAloneFits) {
  Contracts contracts({});
  add(contracts, {0, 1, 2}, 1, false, true);
  add(contracts, {3}, 1, true, false);
  EXPECT_FALSE(contracts.is_out({&kPoint, 3}, 0));
  EXPECT_TRUE(contracts.is_out({&kPoint, 4}, 0));
  add(contracts, {3}, 1, true, true);
  contracts.decide();
  EXPECT_EQ(contracts.chosen({&kPoint, 3}), 0u);
}

Result judged(const FakeRun& run, JudgeOptions options = {}) {
  FakeOracle oracle;
  Judge judge(run.manifest, oracle, nullptr, nullptr, std::move(options));
  for (const Pass& pass : run.passes) judge.judge(pass);
  return judge.finish(run.requests, true);
}

TEST(Undeclared, OneRoundingIsJudgedAsFused) {
  FakeModel model(DType::bf16);
  FakeRun run = fake_run(model, DType::bf16);
  run.manifest.contracts.clear();
  const Result result = judged(run);
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  EXPECT_EQ(result.scope.contracts.at("attn.norm"), "fused");
  EXPECT_EQ(std::ranges::count(result.scope.found, "attn.norm"), 1);
  EXPECT_NE(result.story.find("that was found for it"), std::string::npos) << result.story;
}

// silu(gate) is rounded before it is multiplied, in `layer` or in all.
FakeRun rounded_twice(int layer) {
  FakeModel model(DType::bf16, {}, [layer](const Place& p) {
    const bool here = p.point->name == "mlp.act" && (layer < 0 || p.layer == layer);
    return here ? hf : fused;
  });
  FakeRun run = fake_run(model, DType::bf16);
  run.manifest.contracts.clear();
  return run;
}

TEST(Undeclared, RoundingOnTheWayIsFound) {
  const Result result = judged(rounded_twice(-1));
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  EXPECT_EQ(result.scope.contracts.at("mlp.act"), "hf");
  EXPECT_EQ(result.scope.contracts.at("mlp.norm"), "fused");
  EXPECT_NE(result.story.find("(hf: mlp.act, the others fused)"), std::string::npos)
      << result.story;
}

TEST(Undeclared, TwoKernelsForOnePointAreAFinding) {
  const Result result = judged(rounded_twice(1));
  EXPECT_EQ(result.verdict, RunVerdict::diverged) << result.story;
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->node.place.point->name, "mlp.act") << result.story;
  EXPECT_EQ(result.first->statistic, StatisticKind::contract);
}

TEST(Undeclared, AContractNeverComesBeforeANumber) {
  FakeModel model(
      DType::bf16,
      [](const Place& p, const PassInfo&, std::vector<double>& v) {
        if (p.point->name == "final.norm") v[3] += 1;
      },
      [](const Place& p) { return p.point->name == "mlp.act" && p.layer == 0 ? hf : fused; });
  FakeRun run = fake_run(model, DType::bf16);
  run.manifest.contracts.clear();
  const Result result = judged(run);
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(text_of(result.first->node.place), "final.norm") << result.story;
  EXPECT_TRUE(std::ranges::any_of(
      result.findings, [](const Finding& f) { return f.statistic == StatisticKind::contract; }));
}

TEST(Declared, WhatIsRightUnderAnotherContractIsWrongAndSaidSo) {
  FakeRun run = rounded_twice(-1);
  run.manifest.contracts = {{"mlp.act", fused}};
  const Result result = judged(run);
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place.point->name, "mlp.act");
  EXPECT_NE(result.first->rule.find("would pass if it rounded as hf"), std::string::npos)
      << result.first->rule;
}

// Who rounds the weights of the keys makes a share of all elements another number.
TEST(Declared, OneOddElementIsNotRightUnderAWiderContract) {
  int within = 0;
  for (size_t from_end = 1; from_end <= 16; ++from_end) {
    FakeModel model(DType::bf16, [=](const Place& p, const PassInfo& pass, std::vector<double>& v) {
      if (p.point->name != "attn.out" || p.layer != 1 || pass.pass != 0) return;
      double& odd = v[v.size() - from_end];
      odd += ulp(odd, DType::bf16);
    });
    const Result result = judged(fake_run(model, DType::bf16));
    if (!result.first) continue;  // the exact result lies near the border between the two
    ASSERT_EQ(result.first->node.place.point->name, "attn.out") << result.story;
    EXPECT_EQ(result.first->rule.find("would pass if it rounded as"), std::string::npos)
        << result.first->rule;
    within += result.first->rule.find("within the wider budget of one that rounds as hf") !=
              std::string::npos;
  }
  EXPECT_GT(within, 0) << "the wider contract was never tried";
}

TEST(Declared, WhatRoundsOnceIsWrongAsAChain) {
  FakeModel model(DType::bf16);
  FakeRun run = fake_run(model, DType::bf16);
  run.manifest.contracts["mlp.norm"] = hf;
  const Result result = judged(run);
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(result.first->node.place.point->name, "mlp.norm");
}

// The stream is stored rounded, and the norm after it reads the sum before that.
TEST(Undeclared, ANormOfTheUnroundedSumIsFound) {
  FakeModel model(DType::bf16, {}, [](const Place& p) {
    return p.point->name == "mlp.norm" || p.point->name == "attn.norm" ? unrounded_sum : fused;
  });
  FakeRun run = fake_run(model, DType::bf16);
  run.manifest.contracts.clear();
  const Result result = judged(run);
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  EXPECT_EQ(result.scope.contracts.at("mlp.norm"), "unrounded_sum");
  run.manifest.contracts = {{"mlp.norm", fused}};
  EXPECT_EQ(judged(run).verdict, RunVerdict::diverged);
}

// The same of a trace that has the sums as they were stored, and not what they are of. Each element
// may then be off by a rounding of its sum, and a row may not.
TEST(Undeclared, ANormOfAnUnknownSumHoldsTheScaleOfItsRows) {
  const auto is_norm = [](const Place& p) { return p.point->name == "mlp.norm"; };
  const auto has = [](const Place& p) { return p.point->name != "attn.o"; };
  const auto result_of = [&](double scale, int layer, RoundingContract contract) {
    FakeModel model(
        DType::bf16,
        [&](const Place& p, const PassInfo&, std::vector<double>& v) {
          if (!is_norm(p) || (layer >= 0 && p.layer != layer)) return;
          for (double& x : v) x *= scale;
        },
        [&](const Place& p) { return is_norm(p) ? contract : fused; });
    FakeRun run = fake_run(model, DType::bf16, 2, {64, 40});
    run.manifest.contracts.erase("mlp.norm");
    for (Pass& pass : run.passes)
      std::erase_if(pass.tensors, [&](const RecordedTensor& t) {
        return !has({t.point, t.layer});
      });
    return judged(run, {.recorded = has});
  };
  EXPECT_EQ(result_of(1, -1, unrounded_sum).verdict, RunVerdict::clean);
  EXPECT_EQ(result_of(1, -1, fused).verdict, RunVerdict::clean);
  for (const int layer : {-1, 0, 1}) {
    const Result wrong = result_of(0.9968, layer, unrounded_sum);
    ASSERT_TRUE(wrong.first) << wrong.story;
    EXPECT_EQ(text_of(wrong.first->node.place),
              "layer " + std::to_string(std::max(0, layer)) + " mlp.norm")
        << wrong.story;
    EXPECT_EQ(wrong.first->statistic, StatisticKind::gain) << wrong.story;
  }
}

}  // namespace
}  // namespace lockstep
