// Attention that rounds its weights to the dtype, simulated in fp64: under hf no right kernel
// alarms, whatever its heads and values are like, and one that rounds worse does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "src/judge/budget.h"
#include "src/stats/statistics.h"

namespace lockstep {
namespace {

constexpr size_t kHeads = 4;

// How a kernel rounds a weight, which is exp(score - largest) or that over the sum of all.
enum class Kernel {
  divides_first,   // rounds the weight that is divided already
  divides_last,    // rounds the one that is not, divides by the sum of what it did not round
  sums_rounded,    // the same, divides by the sum of what it rounded
  drops_a_bit,     // divides first, and has a bit less of each weight
  drops_two_bits,  // two
  cuts,            // divides last, and rounds each weight down
};

struct Case {
  DType dtype;
  size_t rows, dim, keys;
  double sharpness;    // standard deviation of the scores
  double common;       // what all values of a column have in common, in their standard deviations
  bool share = false;  // two shares of half as many heads, stored in fp32
};

// A head of one query: what budget_of asks of the oracle, and what the kernel makes of it.
struct Head {
  std::vector<double> want, got, magnitude, spread, spread_squares, squares;
  double overlap = 0;
};

std::vector<double> rounded(Kernel kernel, const std::vector<double>& powers, double sum,
                            DType dtype) {
  const bool first =
      kernel != Kernel::divides_last && kernel != Kernel::sums_rounded && kernel != Kernel::cuts;
  std::vector<double> weights;
  double sum_rounded = 0;
  for (const double power : powers) {
    const double x = first ? power / sum : power;
    const double bits = kernel == Kernel::drops_a_bit ? 2 : 4;  // multiples of the dtype's spacing
    const bool drops = kernel == Kernel::drops_a_bit || kernel == Kernel::drops_two_bits;
    const double spacing = ulp(x, dtype) * bits;
    const double cut = std::floor(x / ulp(x, dtype)) * ulp(x, dtype);
    weights.push_back(drops                    ? std::nearbyint(x / spacing) * spacing
                      : kernel == Kernel::cuts ? cut
                                               : round_to(x, dtype));
    sum_rounded += weights.back();
  }
  if (!first)
    for (double& w : weights) w /= kernel == Kernel::sums_rounded ? sum_rounded : sum;
  return weights;
}

Head attend(Kernel kernel, const Case& c, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> scores, powers;
  for (size_t j = 0; j < c.keys; ++j) scores.push_back(c.sharpness * normal(random));
  const double largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (const double score : scores) sum += powers.emplace_back(std::exp(score - largest));
  const std::vector<double> weights = rounded(kernel, powers, sum, c.dtype);
  Head head;
  std::vector<std::vector<double>> shares;  // by element: what each key is of its variance
  for (size_t d = 0; d < c.dim; ++d) {
    std::vector<double>& values = shares.emplace_back();
    const double common = c.common * normal(random);
    for (size_t j = 0; j < c.keys; ++j)
      values.push_back(round_to(common + normal(random), c.dtype));
    double want = 0, got = 0, magnitude = 0, spread = 0, squares = 0;
    for (size_t j = 0; j < c.keys; ++j) {
      const double p = powers[j] / sum;
      want += p * values[j];
      got += weights[j] * values[j];
      magnitude += p * std::fabs(values[j]);
      squares += std::pow(p * values[j], 2);
    }
    double spread_squares = 0;
    for (size_t j = 0; j < c.keys; ++j) {
      spread += powers[j] / sum * std::fabs(values[j] - want);
      spread_squares += std::pow(powers[j] / sum * (values[j] - want), 2);
    }
    head.spread_squares.push_back(spread_squares);
    head.want.push_back(want);
    head.got.push_back(round_to(got, c.share ? DType::f32 : c.dtype));
    head.magnitude.push_back(magnitude);
    head.spread.push_back(spread);
    head.squares.push_back(squares);
    for (size_t j = 0; j < c.keys; ++j) values[j] *= powers[j] / sum / std::sqrt(squares);
  }
  const double pairs = static_cast<double>(c.dim * (c.dim - 1)) / 2;
  for (size_t d = 0; d < c.dim; ++d)
    for (size_t other = 0; other < d; ++other) {
      double together = 0;
      for (size_t j = 0; j < c.keys; ++j) {
        const double product = shares[d][j] * shares[other][j];
        together += product;
        head.overlap -= 0.6 * product * product / pairs;
      }
      head.overlap += together * together / pairs;
    }
  return head;
}

// Whether the judge holds something against a node.
bool alarms(Kernel kernel, const Case& c, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto dim = static_cast<int64_t>(c.dim), heads = static_cast<int64_t>(kHeads);
  const DType stored = c.share ? DType::f32 : c.dtype;
  Meter meter({.dtype = stored,
               .node_class = NodeClass::reduction,
               .row_shape = c.share ? Shape{2, heads / 2, dim} : Shape{heads, dim},
               .page_size = 16},
              static_cast<int64_t>(c.rows));
  for (size_t row = 0; row < c.rows; ++row) {
    std::vector<double> want, got, magnitude, spread, spread_squares, squares, overlap;
    for (size_t h = 0; h < kHeads; ++h) {
      const Head head = attend(kernel, c, random);
      const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(want, head.want), append(got, head.got), append(magnitude, head.magnitude);
      append(spread, head.spread), append(squares, head.squares);
      append(spread_squares, head.spread_squares);
      overlap.push_back(head.overlap);
    }
    Exact exact{.contract = RoundingContract::hf,
                .shape = c.share ? Shape{1, 2, heads / 2, dim} : Shape{1, heads, dim},
                .want = want};
    exact.row_terms = std::vector<double>(c.share ? 2 : 1, static_cast<double>(c.keys));
    exact.magnitude = magnitude, exact.spread = spread, exact.weighted_squares = squares;
    exact.spread_squares = spread_squares, exact.overlap = overlap;
    exact.score = std::vector<double>(kHeads, 4 * c.sharpness);
    const OpKind op = c.share ? OpKind::partial_attention : OpKind::attention;
    const Budget b = budget_of(op, exact, stored, {}, c.dtype);
    meter.add(static_cast<int64_t>(row),
              {got, want, b.limit, b.variance, b.shared, b.misround, b.gain});
  }
  for (const Statistic& s : meter.finish().statistics)
    if (!s.passes(1)) return true;
  return false;
}

struct Count {
  int nodes = 0, alarms = 0;
  double share() const { return static_cast<double>(alarms) / nodes; }
};

Count count(Kernel kernel, size_t rows, uint64_t seeds, bool share = false) {
  Count count;
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const size_t dim : {16, 32, 96})
      for (const size_t keys : {2, 3, 7, 40})
        for (const double sharpness : {0.3, 1.0, 3.0})
          for (const double common : {0.0, 2.0})
            for (uint64_t seed = 0; seed < seeds; ++seed) {
              const Case c{dtype, rows, dim, keys, sharpness, common, share};
              ++count.nodes;
              count.alarms += alarms(kernel, c, seed);
            }
  return count;
}

// With 60 seeds of one row and 15 of nine, dims up to 128 and 60 keys, none of 32832 nodes alarmed;
// with elements taken for independent, 3 of 1584 of those that divide first did.
TEST(RoundedWeights, OfRightKernelsRaiseNoAlarm) {
  for (const Kernel kernel : {Kernel::divides_first, Kernel::divides_last, Kernel::sums_rounded}) {
    EXPECT_EQ(count(kernel, 1, 8).alarms, 0);
    EXPECT_EQ(count(kernel, 9, 2).alarms, 0);
  }
}

TEST(RoundedWeights, ThatAreRoundedWorseAreSeen) {
  EXPECT_GT(count(Kernel::drops_a_bit, 12, 1).share(), 0.7);
  EXPECT_GT(count(Kernel::drops_a_bit, 40, 1).share(), 0.95);
  EXPECT_GT(count(Kernel::drops_two_bits, 1, 2).share(), 0.85);
  EXPECT_EQ(count(Kernel::drops_two_bits, 9, 1).share(), 1);
}

// The same of shares, whose results of fp32 show each rounding of a weight.
TEST(RoundedWeights, OfSharesOfRightKernelsRaiseNoAlarm) {
  for (const Kernel kernel : {Kernel::divides_first, Kernel::divides_last, Kernel::sums_rounded}) {
    EXPECT_EQ(count(kernel, 1, 8, /*share=*/true).alarms, 0);
    EXPECT_EQ(count(kernel, 9, 2, /*share=*/true).alarms, 0);
  }
}

TEST(RoundedWeights, OfSharesThatAreRoundedWorseAreSeen) {
  EXPECT_GT(count(Kernel::drops_a_bit, 40, 1, /*share=*/true).share(), 0.85);
  EXPECT_EQ(count(Kernel::drops_two_bits, 9, 1, /*share=*/true).share(), 1);
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const double sharpness : {0.3, 1.0, 3.0})
      for (const double common : {0.0, 2.0})
        EXPECT_TRUE(alarms(Kernel::cuts, {dtype, 300, 32, 40, sharpness, common, true}, 1))
            << name_of(dtype) << " " << sharpness << " " << common;
}

// All weights are a little over a power of two, where roundings are largest, and equal keys make
// them so in every row.
TEST(RoundedWeights, OfSharesMayLieWhereRoundingsAreLargest) {
  for (const size_t keys : {3, 15, 31, 63})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const size_t rows : {1, 40, 300})
        EXPECT_FALSE(alarms(Kernel::divides_first, {dtype, rows, 32, keys, 0.01, 0, true}, 1))
            << keys << " keys, " << rows << " rows";
}

}  // namespace
}  // namespace lockstep
