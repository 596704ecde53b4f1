// Sums whose products nearly cancel, held to their budgets: right ones are clean, and wrong ones
// beside them, or among them, are seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "src/judge/budget.h"
#include "src/stats/roundoff.h"
#include "src/stats/statistics.h"

namespace lockstep {
namespace {

constexpr double kU = 0x1p-24;
constexpr size_t kColumns = 64;

// Rows of 64 sums of `terms` products.
struct Sums {
  DType dtype = DType::bf16;
  int64_t terms = 0;
  std::vector<double> want, magnitude, got;

  size_t rows() const { return want.size() / kColumns; }
  void add(double exact, double size, double stored) {
    want.push_back(exact), magnitude.push_back(size), got.push_back(stored);
  }
  double share_misrounded(size_t column) const {
    double count = 0;
    for (size_t i = column; i < want.size(); i += kColumns)
      count += got[i] != round_to(want[i], dtype) ? 1 : 0;
    return count / static_cast<double>(rows());
  }
  // The statistics over their limits, each with its slice.
  std::string failing() const {
    const Exact exact{.shape = {std::ssize(want) / int64_t{kColumns}, kColumns},
                      .want = want,
                      .terms = terms,
                      .magnitude = magnitude};
    Meter meter({.dtype = dtype,
                 .node_class = NodeClass::reduction,
                 .row_shape = {kColumns},
                 .page_size = 16},
                std::ssize(want) / int64_t{kColumns});
    for (size_t row = 0; row < rows(); ++row) {
      const size_t first = row * kColumns;
      const Budget b = budget_of(OpKind::linear, exact, dtype, {first, kColumns});
      const auto of = [&](const std::vector<double>& x) {
        return std::span(x).subspan(first, kColumns);
      };
      meter.add(static_cast<int64_t>(row),
                {of(got), of(want), b.limit, b.variance, b.shared, b.misround, b.gain, b.carried,
                 b.meets_borders, b.usual_misround, b.misround_in_gain});
    }
    std::string failing;
    for (const Statistic& s : meter.finish().statistics)
      if (!s.passes(1))
        failing += std::string(name_of(s.kind)) + (s.slice.empty() ? "" : " ") + s.slice + "; ";
    return failing;
  }
};

// A column that cancels in all rows alike, of products of a kernel on a device: it is off by
// `common` u S on average and by `most` at the most, |o| is `size` S.
struct Cancelling {
  const char* inputs;
  DType dtype;
  int64_t terms;
  double size, common, most;
};

// The worst of 512 columns of 1024 rows of cuBLAS on an H100 (torch 2.11, fp32 out of what is
// stored), for inputs as they are behind a SiLU and for two outliers that cancel.
constexpr auto kMeasured = std::to_array<Cancelling>({
    {"silu", DType::bf16, 1024, 8.3e-4, 3.06, 4.3},
    {"silu", DType::bf16, 4096, 4.3e-4, 5.58, 6.7},
    {"silu", DType::bf16, 8192, 3.2e-4, 7.64, 8.7},
    {"silu", DType::f16, 4096, 4.3e-4, 6.56, 8.5},
    {"silu", DType::f16, 8192, 3.2e-4, 9.59, 11.5},
    {"massive", DType::bf16, 1024, 2.3e-4, 5.72, 7.9},
    {"massive", DType::bf16, 4096, 1.7e-4, 8.90, 10.8},
    {"massive", DType::bf16, 8192, 1.5e-4, 10.68, 12.1},
    {"massive", DType::f16, 1024, 2.2e-4, 7.31, 9.8},
    {"massive", DType::f16, 4096, 1.5e-4, 8.53, 10.3},
    {"massive", DType::f16, 8192, 1.1e-4, 11.28, 12.9},
});

// The first column cancels so, the others are of a usual size and off by 0.03 sqrt(n) u S, as the
// 512 behind a SiLU are on average.
Sums sums_with(const Cancelling& c, size_t rows,
               const std::function<double(double, DType)>& store = round_to) {
  Sums sums{.dtype = c.dtype, .terms = c.terms};
  std::mt19937 generator(11);
  std::normal_distribution<double> normal;
  const double root = std::sqrt(static_cast<double>(c.terms));
  for (size_t row = 0; row < rows; ++row) {
    const double want = 1.25 * c.size * normal(generator);  // of which the mean size is that
    const double error = c.common + (c.most - c.common) / 3.2 * normal(generator);
    sums.add(want, 1, store(want + error * kU, c.dtype));
    for (size_t column = 1; column < kColumns; ++column) {
      const double usual = 1.25 / root * normal(generator);
      const double got = usual + 0.03 * root * kU * normal(generator);
      sums.add(usual, 1, round_to(got, c.dtype));
    }
  }
  return sums;
}

TEST(Cancelling, ColumnsThatTensorCoresMakeAreRight) {
  for (const Cancelling& c : kMeasured)
    for (const size_t rows : {256, 1024}) {
      const Sums sums = sums_with(c, rows);
      EXPECT_EQ(sums.failing(), "")
          << c.inputs << ' ' << c.terms << ", " << rows << " rows: " << sums.share_misrounded(0);
    }
}

// What is seen of a right column of that size tells a wrong one from it.
TEST(Cancelling, ColumnsThatAreWrongAreSeen) {
  const auto truncated = [](double x, DType dtype) {
    const double unit = ulp(x, dtype);
    return std::trunc(x / unit) * unit;
  };
  // Of 1,024 products in bf16, |o| of S / 1,100: a quarter of what they usually come to.
  const Cancelling few = {"alike", DType::bf16, 1024, 9e-4, 1.4, 2};
  EXPECT_EQ(sums_with(few, 512).failing(), "");
  EXPECT_NE(sums_with(few, 512, truncated).failing().find("column 0"), std::string::npos);
  int of_ten = 0;
  const auto bumped = [&](double x, DType dtype) {
    const double right = round_to(x, dtype);
    return ++of_ten % 5 == 0 ? right + ulp(right, dtype) : right;
  };
  EXPECT_NE(sums_with(few, 512, bumped).failing().find("column 0"), std::string::npos);
}

// Elements of a usual size are held to a share of their own: what cancels beside them, half of the
// columns here, lends them none.
TEST(Cancelling, ElementsOfAUsualSizeAreHeldToTheirShare) {
  const Cancelling& c = kMeasured[7];
  const auto with = [&](double share) {
    Sums sums = sums_with(c, 256);
    const Sums other = sums_with({c.inputs, c.dtype, c.terms, c.size, 7.6, 9}, 256);
    std::mt19937 generator(5);
    std::bernoulli_distribution is_wrong(share);
    for (size_t i = 0; i < sums.want.size(); ++i) {
      const size_t column = i % kColumns;
      if (column < kColumns / 2) {
        sums.want[i] = other.want[i - column], sums.got[i] = other.got[i - column];
      } else if (std::fabs(sums.want[i]) > 0.01 && is_wrong(generator)) {
        // Nearer to what was stored than to the next number outwards, by less than B has room for.
        const double got = sums.got[i], next = got + std::copysign(ulp(got, c.dtype), got);
        sums.want[i] = (got + next) / 2 - std::copysign(1e-7, got);
        sums.got[i] = next;
      }
    }
    return sums.failing();
  };
  EXPECT_EQ(with(0), "");
  EXPECT_NE(with(0.1).find("T3"), std::string::npos);
  EXPECT_EQ(with(0.1).find("T1"), std::string::npos);
}

// One column of 64 whose products nearly cancel in all rows has more misrounds than chance makes of
// all elements at their usual size.
TEST(Cancelling, AColumnLetsTheWholeNodePass) {
  constexpr size_t kRows = 256, kTerms = 64;
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> some(1, 2);
  Sums sums{.terms = kTerms};
  double plain = 0, misrounded = 0;  // chances of all at their usual size; misrounds
  for (size_t row = 0; row < kRows; ++row) {
    std::vector<float> products(kTerms);
    for (size_t k = 0; k < kTerms / 2; ++k) {
      products[k] = some(generator);
      products[kTerms / 2 + k * 7 % (kTerms / 2)] = -products[k];
    }
    products.back() += 1.5e-3f * some(generator);
    double want = 0, magnitude = 0;
    float got = 0;  // one product after the other
    for (const float product : products)
      want += product, magnitude += std::fabs(product), got += product;
    for (size_t column = 0; column < kColumns; ++column) {
      const double value = column == 0 ? want : magnitude / 8 * some(generator);
      sums.add(value, magnitude, round_to(column == 0 ? got : value, DType::bf16));
      misrounded += sums.got.back() != round_to(value, DType::bf16) ? 1 : 0;
      plain += std::min(0.02, 0.34 * 8 * kU * magnitude / ulp(value, DType::bf16));
    }
  }
  constexpr size_t kAll = kRows * kColumns;
  EXPECT_GT(misrounded / kAll, share_limit(kAll, plain / kAll, kFalseAlarm)) << "nothing cancels";
  EXPECT_EQ(sums.failing(), "");
}

}  // namespace
}  // namespace lockstep
