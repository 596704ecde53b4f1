// Attention whose scores or probabilities are stored rounded, against attention whose are not.
#include "src/diff/diff_scores.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/judge/ledger.h"
#include "tests/diff/diff_runs.h"

namespace lockstep {
namespace {

constexpr size_t kHeadDim = 16, kKeys = 24;

Manifest declaring(RoundingContract contract, DType dtype = DType::bf16) {
  return {.dtype = dtype, .contracts = {{"attn.out", contract}}};
}

struct Case {
  std::vector<double> q;
  std::vector<std::vector<double>> k, v;
};

// Two heads that read one. Keys have much in common, so that scores are some tens and near each
// other.
Case random_case(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Case c;
  const auto fill = [&](size_t n, double scale) {
    std::vector<double> values(n);
    for (double& x : values) x = round_to(scale * normal(random), DType::bf16);
    return values;
  };
  c.q = fill(2 * kHeadDim, 4);
  for (size_t j = 0; j < kKeys; ++j) {
    c.k.push_back(fill(kHeadDim, 0.2));
    for (size_t d = 0; d < kHeadDim; ++d)
      c.k.back()[d] = round_to(c.k.back()[d] + c.q[d] / 2, DType::bf16);
    c.v.push_back(fill(kHeadDim, 1));
  }
  return c;
}

// eager: the product, the score and the probability are each rounded to bf16.
std::vector<double> attention(const Case& c, bool eager) {
  const auto store = [&](double x) { return eager ? round_to(x, DType::bf16) : x; };
  std::vector<double> out(c.q.size());
  for (size_t h = 0; h < 2; ++h) {
    std::vector<double> p(kKeys);
    double sum = 0, top = -1e300;
    for (size_t j = 0; j < kKeys; ++j) {
      double product = 0;
      for (size_t d = 0; d < kHeadDim; ++d) product += c.q[h * kHeadDim + d] * c.k[j][d];
      top = std::max(top, p[j] = store(store(product) / std::sqrt(double{kHeadDim})));
    }
    for (double& x : p) sum += x = std::exp(x - top);
    for (size_t j = 0; j < kKeys; ++j)
      for (size_t d = 0; d < kHeadDim; ++d) out[h * kHeadDim + d] += store(p[j] / sum) * c.v[j][d];
  }
  return out;
}

RelativeDifference allowed(const Case& c, ScoreRounding& rounding) {
  std::vector<uint64_t> tokens;
  for (size_t j = 0; j < kKeys; ++j) {
    rounding.write(3, j + 1, c.k[j], c.v[j]);
    tokens.push_back(j + 1);
  }
  rounding.add(3, 0, c.q, attention(c, false), kHeadDim, tokens);
  return rounding.take(0);
}

TEST(ScoreRounding, IsABoundOfWhatEagerAttentionIsOff) {
  const DiffNoise plain({{&point("attn.out"), 0}}, {{}}, {true}, DType::bf16);
  int over = 0;
  double of_bounds = 0, of_differences = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Case c = random_case(seed);
    ScoreRounding rounding(declaring(RoundingContract::eager), declaring(RoundingContract::fused));
    ASSERT_TRUE(rounding.any());
    const RelativeDifference most = allowed(c, rounding);
    const std::vector<double> exact = attention(c, false), eager = attention(c, true);
    EXPECT_LE(relative_of(exact, eager), most.all) << seed;
    EXPECT_LE(worst_of(exact, eager), most.worst) << seed;
    over += relative_of(exact, eager) > plain.limit(0, {}).all;
    of_bounds += most.all;
    of_differences += relative_of(exact, eager);
  }
  EXPECT_GT(over, 100) << "what no other noise explains";
  // It takes all roundings for the largest, in one direction: sqrt(24) for 24 keys, 5 for two
  // bounds where one rounding is made (the scale is a power of two) of an rms of 0.4 u, and exp(2
  // d).
  EXPECT_LT(of_bounds, 1.3 * 5 * std::sqrt(24.) * of_differences);
}

TEST(ScoreRounding, IsOfWhatIsDeclaredAlone) {
  using enum RoundingContract;
  EXPECT_FALSE(ScoreRounding(declaring(fused), declaring(hf)).any());
  EXPECT_FALSE(ScoreRounding({}, {}).any()) << "undeclared";
  const Case c = random_case(1);
  const auto all_of = [&](const Manifest& a, const Manifest& b) {
    ScoreRounding rounding(a, b);
    return allowed(c, rounding).all;
  };
  const double one = all_of(declaring(scores_rounded), {});
  EXPECT_GT(one, 0);
  EXPECT_EQ(all_of({}, declaring(scores_rounded)), one) << "whichever side it is";
  EXPECT_GT(all_of({}, declaring(eager)), one);
  EXPECT_GT(all_of(declaring(scores_rounded), declaring(scores_rounded)), 2 * one);
  EXPECT_LT(all_of(declaring(scores_rounded, DType::f16), {}), one / 7);
}

TEST(ScoreRounding, OfKeysThatAreNotShownExplainsAnyNumber) {
  ScoreRounding rounding(declaring(RoundingContract::eager), {});
  const Case c = random_case(2);
  const uint64_t unknown = 99;
  rounding.add(3, 0, c.q, attention(c, false), kHeadDim, {&unknown, 1});
  EXPECT_GT(rounding.take(0).all, 1e300);
  EXPECT_FALSE(std::isinf(rounding.take(0).all)) << "but not what is no number";
}

FakeRun with(RoundingContract contract, FakeRun run) {
  run.manifest.contracts["attn.out"] = contract;
  return run;
}

// One element, off by more than the roundings of a result explain and less than those of scores.
TEST(Diff, IsWidenedByTheScoresThatATraceDeclaresToRound) {
  const auto spoilt = [](double by) {
    return run_of(DType::bf16, spoil_at("attn.out", 1, [=](std::vector<double>& v) {
                    for (double& x : v) x *= 1 + by;
                  }));
  };
  using enum RoundingContract;
  const double off = 0.022;
  DiffResult r = diff_of(run_of(), spoilt(off));
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 attn.out");
  for (const bool swapped : {false, true}) {
    r = swapped ? diff_of(with(eager, run_of()), spoilt(off))
                : diff_of(run_of(), with(eager, spoilt(off)));
    EXPECT_FALSE(r.first_kind) << r.story;
    EXPECT_EQ(r.verdict, DiffResult::Verdict::noise) << r.story;
  }
  r = diff_of(run_of(), with(eager, spoilt(1)));
  ASSERT_TRUE(r.first_kind) << "and by more than scores explain";
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 attn.out");
}

TEST(Diff, IsWidenedByTheOperandsThatATraceDeclaresToRound) {
  const auto spoilt = [] {
    return run_of(DType::f32, spoil_at("mlp.up", 1, [](std::vector<double>& v) {
                    for (double& x : v) x *= 1 + 0x1p-11;
                  }));
  };
  const DiffResult r = diff_of(run_of(DType::f32), spoilt());
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 mlp.up");
  FakeRun declared = spoilt();
  declared.manifest.contracts["mlp.up"] = RoundingContract::tf32;
  EXPECT_EQ(diff_of(run_of(DType::f32), declared).verdict, DiffResult::Verdict::noise);
  declared = spoilt();
  declared.manifest.provenance["accumulator"] = "tf32";
  EXPECT_EQ(diff_of(run_of(DType::f32), declared).verdict, DiffResult::Verdict::noise);
}

}  // namespace
}  // namespace lockstep
