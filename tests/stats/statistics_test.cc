#include "src/stats/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "kernels/base/dtype.h"
#include "src/judge/op_judge.h"

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
// No element may be another number than the exact result rounded.
const std::vector<double> kNever(8192);

TEST(Quantile, AgreesWithTables) {
  // sqrt(chi-square at 1 - 1e-6, over n): scipy.stats.chi2.isf(1e-6, n).
  const auto root = [](int64_t n) {
    return std::sqrt(chi_square_quantile(n, 1e-6) / static_cast<double>(n));
  };
  EXPECT_NEAR(root(16), 1.91, 0.01);
  EXPECT_NEAR(root(64), 1.44, 0.005);
  EXPECT_NEAR(root(1024), 1.11, 0.005);
  EXPECT_NEAR(root(1000000), 1.0034, 0.0005);
  EXPECT_NEAR(chi_square_quantile(1, 0.05), 3.841459, 1e-6);
  EXPECT_NEAR(chi_square_quantile(10, 0.05), 18.307038, 1e-6);
  EXPECT_NEAR(chi_square_quantile(100, 0.01), 135.806723, 1e-6);
  EXPECT_GT(chi_square_quantile(100, 1e-11), chi_square_quantile(100, 1e-6));
  EXPECT_GT(chi_square_quantile(int64_t{1} << 40, 1e-12), 0x1p40);
}

TEST(Quantile, OfPoissonIsTheLeastCountThatIsRarelyExceeded) {
  // P(more than k) by the sum of its terms.
  const auto above = [](double mean, int64_t k) {
    double term = std::exp(-mean), sum = term;
    for (int64_t i = 1; i <= k; ++i) sum += term *= mean / static_cast<double>(i);
    return 1 - sum;
  };
  for (const double mean : {1e-7, 1e-3, 0.5, 3.0, 40.0, 300.0}) {
    const int64_t k = poisson_quantile(mean, 1e-6);
    EXPECT_LE(above(mean, k), 1e-6) << mean;
    EXPECT_TRUE(k == 0 || above(mean, k - 1) > 1e-6) << mean;
  }
  EXPECT_EQ(poisson_quantile(0, 1e-6), 0);
  // exp(-mean) is 0 in fp64 here.
  EXPECT_NEAR(static_cast<double>(poisson_quantile(1e4, 1e-6)), 1e4 + 4.75 * 100, 10);
}

// Values of R's binom.test.
TEST(ClopperPearson, BoundsAShare) {
  EXPECT_NEAR(clopper_pearson_upper(0, 300), 0.0122, 1e-4);
  EXPECT_NEAR(clopper_pearson_lower(10, 10), 0.6915, 1e-4);
  EXPECT_NEAR(clopper_pearson_lower(8, 10), 0.4439, 1e-4);
  EXPECT_NEAR(clopper_pearson_upper(8, 10), 0.9748, 1e-4);
  EXPECT_EQ(clopper_pearson_lower(0, 10), 0);
  EXPECT_EQ(clopper_pearson_upper(10, 10), 1);
  EXPECT_EQ(clopper_pearson_lower(0, 0), 0);
  EXPECT_EQ(clopper_pearson_upper(0, 0), 1);
}

TEST(Quantile, TheLimitHasAFloor) {
  EXPECT_EQ(rms_limit(100000000, 1e-6), 1.10);
  EXPECT_NEAR(rms_limit(64, 1e-6), 1.05 * 1.44, 0.01);
}

TEST(Within, NanNeverPasses) {
  EXPECT_TRUE(within(1, 1));
  EXPECT_FALSE(within(kNan, 1));
  EXPECT_FALSE(within(1, kNan));
  EXPECT_FALSE(within(kInf, 1));
}

// A node of one row, each element with the budget of one rounding.
Measure measure(std::vector<double> want, std::vector<double> got, DType dtype = DType::bf16,
                NodeClass node_class = NodeClass::elementwise) {
  std::vector<double> limit, variance;
  for (double x : want) {
    limit.push_back(ulp(x, dtype) / 2);
    variance.push_back(ulp(x, dtype) * ulp(x, dtype) / 12);
  }
  Meter meter({.dtype = dtype, .node_class = node_class, .row_shape = {std::ssize(want)}}, 1);
  meter.add(0, {got, want, limit, variance, {}, kNever});
  return meter.finish();
}

Verdict verdict(std::vector<double> want, std::vector<double> got, DType dtype = DType::bf16,
                NodeClass node_class = NodeClass::elementwise) {
  const Shape row{std::ssize(want)};
  return outcome_of(measure(std::move(want), std::move(got), dtype, node_class), row, 1).verdict;
}

TEST(Adversarial, NanIsNeverAlike) {
  EXPECT_EQ(verdict({1, 1}, {kNan, 1}), Verdict::nonfinite);
  EXPECT_EQ(measure({1, 1}, {kNan, 1}).nonfinite, Measure::NonFinite::introduced);
  EXPECT_EQ(measure({kNan, 1}, {1, 1}).nonfinite,
            Measure::NonFinite::introduced);  // it hides a NaN
  EXPECT_EQ(measure({kNan, 1}, {kNan, 1}).nonfinite, Measure::NonFinite::propagated);
  EXPECT_EQ(verdict({kNan, 1}, {kNan, 1}), Verdict::nonfinite);
  EXPECT_EQ(verdict({1, kNan}, {1, kNan}, DType::f32, NodeClass::exact), Verdict::nonfinite);
  EXPECT_EQ(measure({1, 1, 1}, {1, 1, kNan}).excluded, 1);
}

TEST(Adversarial, Infinities) {
  EXPECT_EQ(measure({1, 2}, {kInf, 2}).nonfinite, Measure::NonFinite::introduced);
  EXPECT_EQ(measure({1, 2}, {-kInf, 2}).nonfinite, Measure::NonFinite::introduced);
  EXPECT_EQ(measure({kInf}, {kInf}).nonfinite, Measure::NonFinite::propagated);
  EXPECT_EQ(measure({kInf}, {-kInf}).nonfinite,
            Measure::NonFinite::introduced);  // its sign is the op's
  EXPECT_EQ(measure({kInf}, {kNan}).nonfinite, Measure::NonFinite::introduced);
  EXPECT_EQ(measure({kNan}, {kInf}).nonfinite,
            Measure::NonFinite::propagated);  // either may come of NaN
  EXPECT_EQ(measure({kInf}, {3}).nonfinite, Measure::NonFinite::introduced);
  // The exact result is above what fp16 holds: Inf and the largest number are what is expected.
  EXPECT_EQ(measure({70000}, {kInf}, DType::f16).nonfinite, Measure::NonFinite::expected);
  EXPECT_EQ(measure({70000}, {65504}, DType::f16).nonfinite, Measure::NonFinite::expected);
  EXPECT_EQ(measure({-70000}, {-65504}, DType::f16).nonfinite, Measure::NonFinite::expected);
  EXPECT_EQ(measure({70000}, {-kInf}, DType::f16).nonfinite, Measure::NonFinite::introduced);
  EXPECT_EQ(measure({70000}, {kNan}, DType::f16).nonfinite, Measure::NonFinite::introduced);
  EXPECT_EQ(measure({65504}, {kInf}, DType::f16).nonfinite, Measure::NonFinite::introduced);
  EXPECT_EQ(verdict({70000}, {65000}, DType::f16), Verdict::introduced);
}

TEST(Adversarial, SignsAndZeros) {
  EXPECT_EQ(verdict({-1, -2}, {-1, -2}), Verdict::bitwise);
  EXPECT_EQ(verdict({-1}, {1}), Verdict::introduced);
  EXPECT_EQ(verdict({0, 0}, {0, 0}), Verdict::bitwise);
  EXPECT_EQ(verdict({0.0}, {-0.0}), Verdict::bitwise);
  EXPECT_EQ(verdict({0.0}, {-0.0}, DType::f32, NodeClass::exact), Verdict::introduced);
  EXPECT_EQ(verdict({-0.0}, {-0.0}, DType::f32, NodeClass::exact), Verdict::bitwise);
  EXPECT_EQ(verdict({0}, {1}), Verdict::introduced);
  EXPECT_EQ(verdict({1}, {0}), Verdict::introduced);
}

TEST(Adversarial, SubnormalsAndHugeGaps) {
  const double tiny = 0x1p-149;
  EXPECT_EQ(verdict({tiny}, {tiny}, DType::f32), Verdict::bitwise);
  EXPECT_EQ(verdict({tiny}, {0}, DType::f32), Verdict::introduced);  // flushed to zero
  EXPECT_EQ(verdict({tiny / 4}, {0}, DType::f32), Verdict::bitwise);
  EXPECT_EQ(verdict({0}, {tiny}, DType::f32), Verdict::introduced);
  EXPECT_EQ(verdict({1e-40}, {3e38}, DType::f32), Verdict::introduced);
  EXPECT_EQ(verdict({3e38}, {-3e38}, DType::f32), Verdict::introduced);
}

TEST(Adversarial, LastElementOneElementNone) {
  std::vector<double> want(1000, 1.0), got = want;
  got.back() = 1 + 0x1p-7;
  const Measure last = measure(want, got);
  EXPECT_EQ(last.worst.offset, 999);
  EXPECT_EQ(last.worst.budgets, 2);
  EXPECT_EQ(last.over, 1);
  EXPECT_EQ(verdict(want, got), Verdict::introduced);
  EXPECT_EQ(verdict({2}, {2}), Verdict::bitwise);
  EXPECT_EQ(verdict({}, {}), Verdict::inconclusive);
}

TEST(Adversarial, ABudgetThatIsNoNumberVouchesForNothing) {
  for (double bad : {kNan, kInf, 0.0, -1.0}) {
    const std::vector<double> want{1}, got{1}, limit{bad}, variance{1};
    Meter meter({.dtype = DType::bf16, .row_shape = {1}}, 1);
    meter.add(0, {got, want, limit, variance, {}, kNever});
    EXPECT_EQ(outcome_of(meter.finish(), {1}, 1).verdict, Verdict::introduced) << bad;
  }
}

TEST(Strain, IsTheLeastScaleThatPasses) {
  EXPECT_EQ((Statistic{StatisticKind::max_error, 3, 1.5, ""}.limit_ratio()), 2);
  EXPECT_EQ((Statistic{StatisticKind::gain, 0, 0, ""}.limit_ratio()), 0);
  EXPECT_EQ((Statistic{StatisticKind::bits, 1, 0, ""}.limit_ratio()), kInf);
  EXPECT_EQ((Statistic{StatisticKind::max_error, kNan, 1, ""}.limit_ratio()), kInf);
  EXPECT_EQ((Statistic{StatisticKind::max_error, kInf, 1, ""}.limit_ratio()), kInf);
}

TEST(Adversarial, NoiseOfZeroMeanIsSeenByT2) {
  // +-0.9 budgets everywhere: no element is over, the mean is 0, sum and norm hardly move.
  std::vector<double> want(4096, 1.0), got = want;
  for (size_t i = 0; i < got.size(); ++i) got[i] += (i % 2 ? 0.9 : -0.9) * 0x1p-8;
  const Measure m = measure(want, got);
  EXPECT_TRUE(m.statistics.at(0).passes(1));
  EXPECT_FALSE(m.statistics.at(1).passes(1));
  EXPECT_EQ(m.statistics[1].kind, StatisticKind::rms_error);
}

TEST(Adversarial, APermutationOfTheRightNumbersIsSeen) {
  std::vector<double> want, got;
  for (int i = 0; i < 256; ++i) want.push_back(round_to(1 + i / 64.0, DType::bf16));
  got.assign(want.rbegin(), want.rend());
  EXPECT_EQ(verdict(want, got), Verdict::introduced);
}

const Statistic* find(const std::vector<Statistic>& statistics, StatisticKind kind) {
  const auto found = std::ranges::find(statistics, kind, &Statistic::kind);
  return found == statistics.end() ? nullptr : &*found;
}

// Random numbers with heads and several rows, rounded: what a perfect kernel gives.
Measure rounded_node(DType dtype, uint64_t seed, double worse_head = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Meter meter({.dtype = dtype, .row_shape = {4, 32}, .page_size = 16}, 40);
  for (int64_t row = 0; row < 40; ++row) {
    std::vector<double> want, got, limit, variance;
    for (int i = 0; i < 128; ++i) {
      want.push_back(normal(random) * std::exp2(static_cast<double>(i % 7)));
      const double unit = ulp(want.back(), dtype);
      got.push_back(round_to(want.back(), dtype));
      if (i / 32 == 2) got.back() = want.back() + (got.back() - want.back()) * worse_head;
      limit.push_back(unit / 2);
      variance.push_back(unit * unit / 12);
    }
    meter.add(row, {got, want, limit, variance, {}, kNever});
  }
  return meter.finish();
}

TEST(Noise, OfOneRoundingRaisesNoAlarm) {
  for (DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (uint64_t seed = 0; seed < 200; ++seed)
      for (const Statistic& s : rounded_node(dtype, seed).statistics)
        EXPECT_TRUE(s.passes(1)) << name_of(dtype) << ' ' << name_of(s.kind) << ' ' << s.value
                                 << ' ' << s.slice;
}

TEST(Noise, AHeadThatIsWorseIsNamed) {
  const Measure m = rounded_node(DType::bf16, 1, 1.6);
  const Statistic& t4 = m.statistics.at(2);
  EXPECT_EQ(t4.kind, StatisticKind::worst_slice);
  EXPECT_FALSE(t4.passes(1));
  EXPECT_EQ(t4.slice, "head 2");
  // What is shown of it lies there.
  const NodeOutcome outcome = outcome_of(m, {4, 32}, 1);
  ASSERT_EQ(outcome.verdict, Verdict::introduced);
  if (outcome.finding.statistic == StatisticKind::worst_slice) {
    EXPECT_EQ(outcome.finding.index.at(1), 2);
  }
}

// One column of many rows whose results are rounded up instead of to nearest.
TEST(Noise, AColumnThatIsMisroundedIsNamedWithAnElementOfIt) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  Meter meter({.dtype = DType::bf16, .row_shape = {64}}, 100);
  for (int64_t row = 0; row < 100; ++row) {
    std::vector<double> want, got, limit, variance;
    for (int i = 0; i < 64; ++i) {
      want.push_back(normal(random));
      const double unit = ulp(want.back(), DType::bf16);
      got.push_back(i == 17 ? std::ceil(want.back() / unit) * unit
                            : round_to(want.back(), DType::bf16));
      limit.push_back(unit);  // T1 is not what this is about
      variance.push_back(unit * unit / 3);
    }
    meter.add(row, {got, want, limit, variance, {}, kNever});
  }
  const NodeOutcome outcome = outcome_of(meter.finish(), {64}, 1);
  ASSERT_EQ(outcome.verdict, Verdict::introduced);
  EXPECT_EQ(outcome.finding.statistic, StatisticKind::misrounds);
  EXPECT_TRUE(outcome.finding.rule.starts_with("column 17: ")) << outcome.finding.rule;
  EXPECT_EQ(outcome.finding.index.at(1), 17);
  EXPECT_NE(outcome.finding.got, round_to(outcome.finding.want, DType::bf16));
}

// Of a share of misrounded elements one of them is shown, not one that is rounded right and lies
// as far from the exact result as half an ulp is.
TEST(Noise, AShareThatIsMisroundedIsShownByOneOfIt) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  Meter meter({.dtype = DType::bf16, .row_shape = {64}}, 8);
  for (int64_t row = 0; row < 8; ++row) {
    std::vector<double> want, got, limit, variance;
    for (int i = 0; i < 64; ++i) {
      const double unit = ulp(1.5, DType::bf16);
      const bool off = i % 4 == row % 4;  // in no column or row alone
      want.push_back(1.5 + (off ? 0.2 : 0.45) * unit);
      got.push_back(off ? 1.5 + unit : 1.5);
      limit.push_back(off ? 2 * unit : unit / 2);
      variance.push_back(unit * unit);
    }
    meter.add(row, {got, want, limit, variance, {}, kNever});
  }
  const NodeOutcome outcome = outcome_of(meter.finish(), {64}, 1);
  ASSERT_EQ(outcome.verdict, Verdict::introduced);
  EXPECT_EQ(outcome.finding.statistic, StatisticKind::misrounds);
  EXPECT_EQ(outcome.finding.got, 1.5 + ulp(1.5, DType::bf16)) << outcome.finding.rule;
  EXPECT_GT(outcome.finding.of_row, 0);
}

// Exact results that stand 0.45 ulp beside a number of the dtype, in every row of some columns, as
// a bias that a slow dim of a rope moves a little; `noise` ulp come on top of the rounding.
Measure node_in_a_fixed_place(DType dtype, double noise) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  Meter meter({.dtype = dtype, .row_shape = {4, 32}, .page_size = 16}, 600);
  for (int64_t row = 0; row < 600; ++row) {
    std::vector<double> want, got, limit, variance;
    for (int i = 0; i < 128; ++i) {
      const double unit = ulp(1.5, dtype), free = 1.5 + 0.1 * normal(random);
      want.push_back(i % 32 < 3 ? 1.5 + 0.45 * unit : free);
      const double error = i % 32 < 3 ? noise * normal(random) : 0;
      got.push_back(round_to(want.back(), dtype) + error * unit);
      limit.push_back(unit * 100);  // T1 is not what this is about
      variance.push_back(unit * unit / 12);
    }
    meter.add(row, {got, want, limit, variance, {}, kNever});
  }
  return meter.finish();
}

TEST(Noise, OfResultsInAFixedPlaceRaisesNoAlarm) {
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const Measure clean = node_in_a_fixed_place(dtype, 0);
    for (const StatisticKind kind : {StatisticKind::rms_error, StatisticKind::worst_slice}) {
      const Statistic* s = find(clean.statistics, kind);
      ASSERT_NE(s, nullptr);
      EXPECT_TRUE(s->passes(1)) << name_of(dtype) << ' ' << name_of(kind) << ' ' << s->value << ' '
                                << s->slice;
    }
    const Measure noisy = node_in_a_fixed_place(dtype, 0.4);
    const Statistic* t4 = find(noisy.statistics, StatisticKind::worst_slice);
    ASSERT_NE(t4, nullptr);
    EXPECT_FALSE(t4->passes(1)) << name_of(dtype);
    EXPECT_TRUE(t4->slice.starts_with("column")) << t4->slice;
  }
}

TEST(Noise, LimitsTimesZeroFail) {
  const NodeOutcome outcome = outcome_of(rounded_node(DType::bf16, 1), {4, 32}, 0);
  EXPECT_EQ(outcome.verdict, Verdict::introduced);
  EXPECT_EQ(outcome.finding.limit, 0);
  EXPECT_TRUE(std::isfinite(outcome.finding.budgets));
}

TEST(Noise, FewElementsAreHeldToT1Only) {
  const std::vector<double> want(63, 1.0);
  EXPECT_EQ(measure(want, want).statistics.size(), 1u);
  const std::vector<double> enough(64, 1.0);
  std::string names;
  for (const Statistic& s : measure(enough, enough).statistics) names += name_of(s.kind);
  EXPECT_EQ(names, "T1T2T4T3T3");  // and no gain: a budget without one was given
}

TEST(Share, LimitIsThatOfARareBinomial) {
  // scipy.stats.binom.isf(1e-6, n, p) + 1 is at most the limit, and not far from it.
  EXPECT_GE(share_limit(64, 0.02, 1e-6) * 64, 9);
  EXPECT_LE(share_limit(64, 0.02, 1e-6) * 64, 14);
  EXPECT_GE(share_limit(10000, 0.02, 1e-6) * 10000, 270);
  EXPECT_LE(share_limit(10000, 0.02, 1e-6) * 10000, 285);
  EXPECT_GT(share_limit(1, 0, 1e-6), 1);  // one element tells nothing
}

// Rows of `width` numbers as a kernel gives them whose every result is off by `gain` before it is
// rounded, and by noise of `noise` ulp.
// Hashes of which every low bit is 0 are what a PlacePool takes of a long run.
TEST(DistinctMoments, TakesEachRowOnce) {
  for (const int shift : {0, 12, 20}) {
    DistinctMoments moments;
    Moments row;
    row.elements = 1;
    for (int round = 0; round < 2; ++round)
      for (uint64_t i = 1; i <= 5000; ++i)
        EXPECT_EQ(moments.add(i << shift, row), round == 0) << shift << " " << i;
    EXPECT_EQ(moments.rows(), 5000);
    EXPECT_EQ(moments.sum().elements, 5000);
  }
}

// What pooled() makes.
struct Pooled : Moments {
  std::vector<Statistic> statistics(DType dtype) const {
    return Moments::statistics(dtype, kPooledFalseAlarm);
  }
};

Pooled pooled(DType dtype, int64_t rows, double gain, double noise, bool repeated = false,
              uint64_t seed = 3, bool truncates = false) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  PlacePool pool;
  constexpr size_t kWidth = 192;
  std::vector<double> want(kWidth), got(kWidth), limit(kWidth), variance(kWidth);
  const std::vector<double> misround(kWidth, 1e-3);
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < kWidth; ++i) {
      if (!repeated || row == 0) want[i] = normal(random);
      const double unit = ulp(want[i], dtype);
      if (!repeated || row == 0)
        got[i] = round_to(want[i] * (1 + gain) + noise * unit * normal(random), dtype);
      limit[i] = unit / 2 + 1e-3 * unit;
      variance[i] = unit * unit / 12;
    }
    Meter meter({.dtype = dtype, .row_shape = {std::ssize(want)}, .truncates = truncates}, 1,
                &pool);
    meter.add(row, {got, want, limit, variance, {}, misround, 1.4e-6});
  }
  return {pool.sum()};
}

TEST(Misrounds, OfMoreThanTheBudgetAllowsAreSeen) {
  const Pooled good = pooled(DType::bf16, 100, 0, 3e-4);
  EXPECT_LE(good.misrounded, 40);
  EXPECT_NEAR(good.may_misround, 19.2, 0.1);
  EXPECT_TRUE(find(good.statistics(DType::bf16), StatisticKind::misrounds)->passes(1));
  const Pooled bad = pooled(DType::bf16, 100, 0, 1e-2);
  EXPECT_NEAR(static_cast<double>(bad.misrounded), 19200 * 0.8e-2, 60);
  const auto statistics = bad.statistics(DType::bf16);
  EXPECT_FALSE(find(statistics, StatisticKind::misrounds)->passes(1));
  EXPECT_TRUE(find(statistics, StatisticKind::rms_error)
                  ->passes(1));  // which a hundredth of an ulp does not move
  EXPECT_EQ(find(pooled(DType::f32, 100, 0, 1e-2).statistics(DType::f32), StatisticKind::misrounds),
            nullptr);
}

TEST(Gain, OfAFewMillionthsIsSeenInManyRows) {
  for (const double gain : {4e-6, -4e-6}) {
    const Pooled many = pooled(DType::bf16, 1500, gain, 3e-4);
    const auto statistics = many.statistics(DType::bf16);
    EXPECT_FALSE(find(statistics, StatisticKind::gain)->passes(1))
        << find(statistics, StatisticKind::gain)->slice;
    EXPECT_NEAR(many.cross / many.power, gain, 1e-6);
    EXPECT_NE(find(statistics, StatisticKind::gain)->slice.find(gain > 0 ? "large" : "small"),
              std::string::npos);
    EXPECT_TRUE(
        find(pooled(DType::bf16, 5, gain, 3e-4).statistics(DType::bf16), StatisticKind::gain)
            ->passes(1));
  }
  const Pooled none = pooled(DType::bf16, 1500, 0, 3e-4);
  EXPECT_TRUE(find(none.statistics(DType::bf16), StatisticKind::gain)->passes(1));
}

TEST(Gain, OfFp32IsHeldToWhatRowsHaveInCommon) {
  EXPECT_FALSE(find(pooled(DType::f32, 256, 4e-6, 2).statistics(DType::f32), StatisticKind::gain)
                   ->passes(1));
  EXPECT_TRUE(
      find(pooled(DType::f32, 256, 0, 2).statistics(DType::f32), StatisticKind::gain)->passes(1));
  EXPECT_TRUE(find(pooled(DType::f32, 256, 1e-7, 0.1).statistics(DType::f32), StatisticKind::gain)
                  ->passes(1));
  EXPECT_EQ(find(pooled(DType::f32, 255, 4e-6, 2).statistics(DType::f32), StatisticKind::gain),
            nullptr);
}

// What an accumulator truncates makes results small, so that nothing excuses as much of the other
// sign; other ops have their gain of both.
TEST(Gain, OfWhatTruncatesIsOfOneSign) {
  const auto passes = [](double gain, bool truncates) {
    const Pooled sums = pooled(DType::f32, 256, gain, 0.1, false, 3, truncates);
    const bool over = sums.gain_over(DType::f32).has_value();
    EXPECT_EQ(over, !find(sums.statistics(DType::f32), StatisticKind::gain)->passes(1));
    return !over;
  };
  EXPECT_TRUE(passes(-1e-6, true));
  EXPECT_FALSE(passes(1e-6, true));
  EXPECT_TRUE(passes(1e-6, false));
  EXPECT_TRUE(passes(3e-7, true));  // an accumulator's own unit
}

TEST(Gain, IsNotMadeOfWhatMustRoundOneWay) {
  // Exact results a tenth of an ulp under the numbers of the dtype: all round up, and should.
  std::vector<double> want, got, limit, variance;
  for (int i = 0; i < 4096; ++i) {
    const double number = 1 + (i % 128) * 0x1p-7;
    want.push_back(number - 0.1 * 0x1p-7);
    got.push_back(number);
    limit.push_back(0x1p-8);
    variance.push_back(0x1p-14 / 12);
  }
  Meter meter({.dtype = DType::bf16, .row_shape = {4096}}, 1);
  meter.add(0, {got, want, limit, variance, {}, kNever, 0x1p-23});
  EXPECT_EQ(find(meter.finish().statistics, StatisticKind::gain)->value, 0);
}

// Numbers of one row of an op whose results meet borders, most with room for what fp32 is off by.
struct OnBorders {
  std::vector<double> want, got, limit, variance;
  void add(double exact, double stored, DType dtype) {
    const double unit = ulp(exact, dtype);
    want.push_back(exact), got.push_back(stored);
    limit.push_back(unit / 2 + 0x1p-20 * std::fabs(exact));
    variance.push_back(unit * unit / 12);
  }
  Measure measured(DType dtype, bool meets_borders = true,
                   NodeClass node_class = NodeClass::reduction) const {
    Meter meter({.dtype = dtype, .node_class = node_class, .row_shape = {std::ssize(want)}}, 1);
    meter.add(0, {got, want, limit, variance, {}, kNever, 0x1p-21, {}, meets_borders});
    return meter.finish();
  }
};

// Means of three stored numbers, on the border of two in exact arithmetic, which fp64 has beside
// it, on the side of the inner one: a kernel whose 1/3 is a little too large stores the outer one.
TEST(Borders, BothNeighboursAreTheExactResultRounded) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const bool odd : {false, true}) {
      OnBorders row;
      for (int i = 0; i < 3000; ++i) {
        const double inner = (1 + (i % 128) * 0x1p-7) * (i % 2 == 0 ? 1 : -1);
        const double unit = std::copysign(ulp(inner, dtype), inner);
        row.add((inner + unit / 2) * (1 - 0x1p-53), inner + unit, dtype);
      }
      // Beside an element that is no number each is looked at by itself.
      if (odd) row.want[7] = kNan;
      const Measure measure = row.measured(dtype);
      EXPECT_EQ(measure.different, odd ? 1 : 0);
      EXPECT_EQ(measure.excluded, odd ? 1 : 0);
      EXPECT_EQ(find(measure.statistics, StatisticKind::misrounds)->value, 0);
      EXPECT_EQ(find(measure.statistics, StatisticKind::gain)->value, 0);
      // Of an op whose results lie anywhere each is a misround.
      const Measure anywhere = row.measured(dtype, false);
      EXPECT_EQ(anywhere.different, 3000);
      EXPECT_FALSE(find(anywhere.statistics, StatisticKind::gain)->passes(1));
    }
}

TEST(Borders, NoOtherNumberIsTheExactResultRounded) {
  constexpr DType kDType = DType::bf16;
  constexpr double kUnit = 0x1p-7, kBorder = 1 + kUnit / 2;
  const auto different = [](double want, double got, NodeClass of = NodeClass::reduction) {
    int64_t count = 0;
    for (const bool odd : {false, true}) {
      OnBorders row;
      row.add(want, got, kDType);
      row.add(odd ? kInf : 1, odd ? kInf : 1, kDType);
      count += row.measured(kDType, true, of).different;
    }
    EXPECT_NE(count, 1) << "one row, measured in two ways";
    return count;
  };
  EXPECT_EQ(different(kBorder, 1), 0);
  EXPECT_EQ(different(kBorder, 1 + kUnit), 0);
  EXPECT_EQ(different(kBorder, 1 + 2 * kUnit), 2);
  EXPECT_EQ(different(kBorder, 1 - kUnit / 2), 2);
  // What fp64 tells from the border is rounded one way.
  EXPECT_EQ(different(kBorder - 0x1p-40, 1 + kUnit), 2);
  EXPECT_EQ(different(kBorder + 0x1p-40, 1), 2);
  // Half a spacing under a power of two is a number, and the power another.
  EXPECT_EQ(different(1, 1 - kUnit / 2), 2);
  EXPECT_EQ(different(2 - kUnit / 2, 2), 0);
  // An exact op has one right result: fp64 has it without an error.
  EXPECT_EQ(different(kBorder, 1, NodeClass::exact), 0);
  EXPECT_EQ(different(kBorder, 1 + kUnit, NodeClass::exact), 2);
  // A budget that is no number says nothing of how far the oracle sees.
  OnBorders row;
  row.add(kBorder, 1 + kUnit, kDType);
  row.limit[0] = kInf;
  EXPECT_EQ(row.measured(kDType).different, 1);
  // The border of the largest number is that of Inf.
  const double largest = format_of(kDType).max;
  EXPECT_EQ(different(largest - ulp(largest, kDType) / 2, largest), 0);
}

TEST(Repeated, RowsAreOneObservation) {
  const Moments once = pooled(DType::bf16, 1, 0, 0.02, true);
  const Moments often = pooled(DType::bf16, 500, 0, 0.02, true);
  EXPECT_EQ(often.rows, 1);
  EXPECT_EQ(often.elements, once.elements);
  EXPECT_EQ(often.misrounded, once.misrounded);
  Meter meter({.dtype = DType::bf16, .row_shape = {64}, .page_size = 16}, 40);
  const std::vector<double> row(64, 1.0), limit(64, 0x1p-8), variance(64, 1e-5);
  std::vector<double> last = row;
  last[3] += 0x1p-7;
  for (int64_t i = 0; i < 40; ++i)
    meter.add(i, {i == 39 ? last : row, row, limit, variance, {}, kNever});
  EXPECT_EQ(meter.finish().over, 1);  // T1 sees every row all the same
  EXPECT_EQ(meter.finish().elements, 40 * 64);
}

// A column that is a quarter of an ulp off in every decode pass shows in none of them.
TEST(Pool, OfManyNodesShowsAColumnThatNoneOfThemDoes) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> normal;
  PlacePool pool;
  for (int64_t pass = 0; pass < 400; ++pass) {
    std::vector<double> want, got, limit, variance;
    for (int i = 0; i < 128; ++i) {
      want.push_back(normal(random));
      const double unit = ulp(want.back(), DType::bf16);
      got.push_back(round_to(want.back() + (i == 5 ? 0.25 * unit : 0), DType::bf16));
      limit.push_back(unit);
      variance.push_back(unit * unit / 12);
    }
    Meter node({.dtype = DType::bf16, .row_shape = {128}}, 1, &pool);
    node.add(pass, {got, want, limit, variance, {}, std::vector<double>(128, 1e-3)});
    for (const Statistic& s : node.finish().statistics) EXPECT_TRUE(s.passes(1)) << name_of(s.kind);
  }
  bool named = false;
  for (const Statistic& s : pool.statistics(DType::bf16))
    named = named || (!s.passes(1) && s.slice.starts_with("column 5"));
  EXPECT_TRUE(named);
}

// Rows of two heads that a meter measures, of which some are alike.
std::vector<Meter::Row> some_rows(const Meter& meter, const std::vector<int>& kinds) {
  std::vector<Meter::Row> rows;
  for (size_t r = 0; r < kinds.size(); ++r) {
    std::mt19937_64 random(kinds[r]);
    std::normal_distribution<double> normal;
    std::vector<double> want, got, limit, variance;
    for (int i = 0; i < 128; ++i) {
      want.push_back(1 + std::fabs(normal(random)));
      const double unit = ulp(want.back(), DType::bf16);
      got.push_back(round_to(want.back() + 0.3 * unit * normal(random), DType::bf16));
      limit.push_back(unit);
      variance.push_back(unit * unit / 12);
    }
    const std::vector<double> misround(128, 1e-3);
    rows.push_back(
        meter.measure(static_cast<int64_t>(r), {got, want, limit, variance, {}, misround}));
  }
  return rows;
}

TEST(Pool, TakesWholeRowsAsAMeterAddsThem) {
  const Meter::Options options{.dtype = DType::bf16, .row_shape = {2, 64}};
  const std::vector<int> kinds = {1, 2, 1, 3, 4, 4, 5, 6, 7, 8};
  PlacePool by_meter, whole;
  Meter meter(options, 10, &by_meter);
  std::vector<Meter::Row> rows = some_rows(meter, kinds), same = some_rows(meter, kinds);
  meter.add(rows, nullptr);
  whole.add_whole(same, nullptr);
  EXPECT_EQ(whole.sum().elements, 8 * 128);
  const std::vector<Statistic> a = by_meter.statistics(DType::bf16),
                               b = whole.statistics(DType::bf16);
  ASSERT_FALSE(a.empty());
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(std::tuple(a[i].kind, a[i].value, a[i].limit, a[i].slice),
              std::tuple(b[i].kind, b[i].value, b[i].limit, b[i].slice));
  }
}

// Columns are of the rows that the pool takes, by their numbers where they were measured.
TEST(Pool, AsksForTheColumnsOfTheRowsThatItTakes) {
  class Distant final : public DistantRows {
   public:
    void put_row(size_t, DistantRow&) const override { FAIL() << "rows are measured"; }
    std::shared_ptr<const DistantColumns> columns(std::span<const int64_t> rows) const override {
      asked.emplace_back(rows.begin(), rows.end());
      auto made = std::make_shared<DistantColumns>();
      for (auto* of :
           {&made->elements, &made->squares, &made->due, &made->misrounded, &made->may_misround})
        of->assign(128, 0);
      return made;
    }
    mutable std::vector<std::vector<int64_t>> asked;
  } distant;
  const Meter meter({.dtype = DType::bf16, .row_shape = {2, 64}}, 4);
  PlacePool pool;
  using Numbers = std::vector<std::vector<int64_t>>;
  pool.add_whole(some_rows(meter, {1, 2, 1, 3}), &distant);
  EXPECT_EQ(distant.asked, (Numbers{{0, 1, 3}}));
  pool.add_whole(some_rows(meter, {3, 4, 2, 5}), &distant);
  EXPECT_EQ(distant.asked, (Numbers{{0, 1, 3}, {1, 3}}));
  pool.add_whole(some_rows(meter, {5, 4}), &distant);
  EXPECT_EQ(distant.asked.size(), 2u) << "of no row nothing is asked";
}

// A long run is known by a sample of its rows, which what they hold has no part in choosing.
TEST(Pool, TakesFewerOfVeryManyRows) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal;
  PlacePool pool;
  const std::vector<double> limit(4, 1), variance(4, 1e-4);
  const auto add = [&](int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      std::vector<double> want(4), got(4);
      for (int c = 0; c < 4; ++c) {
        want[c] = 1 + normal(random);
        got[c] = want[c] + 0.01 * normal(random);
      }
      Meter(Meter::Options{.dtype = DType::f32, .row_shape = {4}}, 1, &pool)
          .add(i, {got, want, limit, variance, {}, kNever});
    }
    return pool.sum().elements / 4;
  };
  EXPECT_EQ(add(2000), 2000);
  const int64_t taken = add(30000);
  EXPECT_GT(taken, 4000);
  EXPECT_LT(taken, 5500);
  for (const Statistic& s : pool.statistics(DType::f32))
    EXPECT_TRUE(s.passes(1)) << name_of(s.kind);
}

// Elements that share their error are as one: a row whose scale is wrong by two deviations is no
// alarm where the scale is shared, and one where elements are independent.
TEST(Shared, ErrorsOfARowCountOnce) {
  const std::vector<double> want(256, 1.5), limit(256, 1), variance(256, 1e-6);
  const std::vector<double> got(256, 1.5 + 2e-3);
  for (const bool shared : {true, false}) {
    Meter meter({.dtype = DType::f32, .row_shape = {256}}, 1);
    meter.add(0, {got, want, limit, variance, shared ? variance : std::vector<double>(), kNever});
    const std::vector<Statistic> statistics = meter.finish().statistics;
    EXPECT_EQ(find(statistics, StatisticKind::rms_error)->passes(1), shared);
  }
}

// An error is of one head, of one share where there are shares: three heads of two shares have six.
TEST(Shared, ErrorsOfSharesAreOfEachOfTheirHeads) {
  const std::vector<double> want(6 * 64, 1.5), limit(6 * 64, 1), variance(6 * 64, 1e-6);
  const auto limit_of = [&](const Shape& row_shape) {
    Meter meter({.dtype = DType::f32, .row_shape = row_shape}, 1);
    meter.add(0, {want, want, limit, variance, variance, kNever});
    return find(meter.finish().statistics, StatisticKind::rms_error)->limit;
  };
  EXPECT_EQ(limit_of({2, 3, 64}), limit_of({6, 64}));
  EXPECT_LT(limit_of({2, 3, 64}), limit_of({6 * 64}));
}

TEST(Offset, OfATruncationIsManyDeviations) {
  std::vector<double> want, got, limit, variance;
  for (int i = 0; i < 4096; ++i) {
    want.push_back(1.5 + i * 1e-5);
    got.push_back(std::floor(want.back() * 128) / 128);
    limit.push_back(0x1p-7);
    variance.push_back(0x1p-14 / 12);
  }
  PlacePool pool;
  Meter meter({.dtype = DType::bf16, .row_shape = {4096}}, 1, &pool);
  meter.add(0, {got, want, limit, variance, {}, kNever, 0x1p-23});
  EXPECT_LT(pool.sum().offset_deviations(), -kGainDeviations);
  EXPECT_EQ(Moments{}.offset_deviations(), 0);
}

// A row that has an element which is no number is measured element by element, any other in loops
// for vectors: all but that element come to the same.
class TwoWays : public testing::TestWithParam<DType> {
 protected:
  static constexpr size_t kHeads = 3, kDim = 40, kWidth = kHeads * kDim, kRows = 20;

  struct Numbers {
    std::vector<double> want, got, limit, variance, shared, misround, carried;
  };
  // Element 5 counts for nothing: its variance is infinite, or it is no number.
  Numbers row(bool odd) {
    Numbers n;
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < kWidth; ++i) {
      const double x = normal(random_), unit = ulp(x, GetParam());
      // Some lie on the border of two numbers, but for what fp64 is off by, and are rounded away
      // from 0.
      const bool on_border = i % 7 == 3;
      const double below = std::copysign(std::floor(std::fabs(x) / unit) * unit, x);
      const double border = below + std::copysign(unit / 2, x);
      n.want.push_back(on_border ? border * (1 - 0x1p-53) : x);
      n.got.push_back(on_border ? below + std::copysign(unit, x)
                                : round_to(x + 0.4 * unit * normal(random_), GetParam()));
      n.limit.push_back(0.9 * unit);
      n.variance.push_back(unit * unit * (0.1 + 0.1 * std::fabs(normal(random_))));
      n.shared.push_back(0.3 * n.variance.back());
      n.carried.push_back(0.2 * n.variance.back());
      n.misround.push_back(0.2);
    }
    n.want[5] = n.got[5] = odd ? kNan : 0;
    n.variance[5] = kInf;
    return n;
  }
  Measure measured(bool odd, NodeClass node_class, bool shares, bool carries, bool alike,
                   PlacePool* pool, bool meets_borders = false) {
    random_.seed(3);
    Meter meter({.dtype = GetParam(),
                 .node_class = node_class,
                 .row_shape = {kHeads, kDim},
                 .page_size = 8,
                 .rows_alike = alike},
                kRows, pool);
    for (size_t i = 0; i < kRows; ++i) {
      const Numbers n = row(odd);
      const std::span<const double> none;
      meter.add(static_cast<int64_t>(i),
                {n.got, n.want, n.limit, n.variance, shares ? std::span(n.shared) : none,
                 n.misround, 1e-3, carries ? std::span(n.carried) : none, meets_borders});
    }
    return meter.finish();
  }
  static void expect_same(const std::vector<Statistic>& a, const std::vector<Statistic>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].kind, b[i].kind);
      EXPECT_NEAR(a[i].value / b[i].value, 1, 1e-9) << i << a[i].slice;
      EXPECT_NEAR(a[i].limit / b[i].limit, 1, 1e-9) << i << a[i].slice;
      if (a[i].kind == StatisticKind::worst_slice) {
        EXPECT_EQ(a[i].slice, b[i].slice);
      }
    }
  }

  std::mt19937 random_;
};

TEST_P(TwoWays, ComeToTheSame) {
  int64_t different[2] = {};
  for (const int shape : {0, 1, 2, 3, 7, 8, 11}) {
    const bool shares = (shape & 1) != 0, carries = (shape & 2) != 0, alike = (shape & 4) != 0;
    const bool borders = (shape & 8) != 0;
    PlacePool plain_pool, odd_pool;
    const Measure plain =
        measured(false, NodeClass::elementwise, shares, carries, alike, &plain_pool, borders);
    const Measure odd =
        measured(true, NodeClass::elementwise, shares, carries, alike, &odd_pool, borders);
    different[borders ? 1 : 0] = plain.different;
    EXPECT_EQ(odd.excluded, kRows);
    EXPECT_EQ(plain.excluded, 0);
    expect_same(plain.statistics, odd.statistics);
    expect_same(plain_pool.statistics(GetParam()), odd_pool.statistics(GetParam()));
    EXPECT_GT(plain.over, 0);
    EXPECT_EQ(plain.over, odd.over);
    EXPECT_EQ(plain.different, odd.different);
    EXPECT_NEAR(plain.sum_squares / odd.sum_squares, 1, 1e-12);
    EXPECT_NEAR(plain.inner / odd.inner, 1, 1e-12);
    EXPECT_EQ(plain.largest, odd.largest);
    const auto expect_element = [](const Element& a, const Element& b) {
      EXPECT_EQ(std::tuple(a.position, a.offset, a.want, a.got),
                std::tuple(b.position, b.offset, b.want, b.got));
      EXPECT_NEAR(a.of_row / b.of_row, 1, 1e-9);
    };
    expect_element(plain.worst, odd.worst);
    expect_element(plain.worst_scattered, odd.worst_scattered);
    ASSERT_TRUE(plain.misrounded && odd.misrounded);
    expect_element(*plain.misrounded, *odd.misrounded);
    ASSERT_EQ(plain.wrong.size(), odd.wrong.size());
    for (size_t i = 0; i < plain.wrong.size(); ++i) {
      EXPECT_EQ(plain.wrong[i].row, odd.wrong[i].row);
      EXPECT_EQ(plain.wrong[i].elements, odd.wrong[i].elements);
    }
  }
  EXPECT_EQ(different[0] - different[1], 17 * static_cast<int64_t>(kRows)) << "on borders";
}

TEST_P(TwoWays, OfBitsToo) {
  const Measure plain = measured(false, NodeClass::exact, false, false, false, nullptr);
  const Measure odd = measured(true, NodeClass::exact, false, false, false, nullptr);
  EXPECT_GT(plain.different, 0);
  EXPECT_EQ(plain.different, odd.different);
  EXPECT_EQ(plain.worst.position, odd.worst.position);
  EXPECT_EQ(plain.worst.offset, odd.worst.offset);
  ASSERT_EQ(plain.wrong.size(), odd.wrong.size());
  for (size_t i = 0; i < plain.wrong.size(); ++i)
    EXPECT_EQ(plain.wrong[i].elements, odd.wrong[i].elements);
  // The sign of a zero is one of its bits.
  const std::vector<double> zero{0.0}, minus{-0.0}, one{1e-3}, chance{0.0};
  for (const bool same : {true, false}) {
    Meter meter({.dtype = GetParam(), .node_class = NodeClass::exact, .row_shape = {1}}, 1);
    meter.add(0, {same ? zero : minus, zero, one, one, {}, chance});
    EXPECT_EQ(meter.finish().different, same ? 0 : 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TwoWays, testing::Values(DType::bf16, DType::f16, DType::f32),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// A plain row leaves numbers where one that is not plain has elements that do not count.
TEST(Meter, MeasuresARowAlikeInUsedMemory) {
  const std::vector<double> want = {1, -2, 3, 4, 5, 6, 7, 8.01}, got = {1, -2, 3, 4, 5, 6, 7, 8};
  const std::vector<double> limit(8, 0.1), variance(8, 1e-4), never(8);
  std::vector<double> odd = want, wide = variance;
  odd[2] = kNan, wide[5] = kInf;
  const Meter meter({.dtype = DType::bf16, .row_shape = {2, 4}}, 4);
  const RowNumbers rows[] = {{got, want, limit, variance, {}, never},
                             {odd, odd, limit, variance, {}, never},
                             {got, want, limit, wide, {}, never}};
  for (const RowNumbers& before : rows)
    for (const RowNumbers& row : rows) {
      const Meter::Row fresh = meter.measure(3, row);
      const Meter::Row used = meter.measure(3, row, meter.measure(2, before).elements);
      EXPECT_EQ(fresh.hash, used.hash);
      EXPECT_EQ(fresh.sum.squares, used.sum.squares);
      EXPECT_EQ(fresh.sum.elements, used.sum.elements);
      for (const auto amounts :
           {&WeighedRow::got, &WeighedRow::unit, &WeighedRow::due, &WeighedRow::budgets,
            &WeighedRow::may_misround, &WeighedRow::common, &WeighedRow::misrounded})
        EXPECT_EQ(fresh.elements.*amounts, used.elements.*amounts);
      EXPECT_EQ(fresh.elements.want, used.elements.want);
    }
}

}  // namespace
}  // namespace lockstep
