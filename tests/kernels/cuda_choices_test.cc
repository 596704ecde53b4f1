// The twins of argmax, top_k, routing_weights, expert_matmul and weighted_sum.
#include "tests/kernels/cuda_samples.h"
#include "tests/kernels/expected.h"

namespace lockstep {
namespace {

class CudaChoices : public CudaTest {
 protected:
  double largest(const std::vector<double>& values, DType dtype) const {
    Sample logits({1, std::ssize(values)}, dtype, 1), out({1}, DType::i32);
    run(ops_->argmax, out, logits.fill(values));
    return out.values()[0];
  }
  std::vector<double> chosen(const std::vector<double>& values, int64_t k) const {
    Sample logits({1, std::ssize(values)}, DType::f32), out({1, k}, DType::i32);
    run(ops_->top_k, out, logits.fill(values));
    return out.values();
  }
};

TEST_F(CudaChoices, ArgmaxIsTheFirstOfTheLargest) {
  for (const DType dtype : kFloats) {
    EXPECT_EQ(largest({5}, dtype), 0);
    EXPECT_EQ(largest({1, 3, 2}, dtype), 1);
    EXPECT_EQ(largest({-3, -1, -2}, dtype), 1);
    EXPECT_EQ(largest({1, 3, 3, 2, 3}, dtype), 1);
    EXPECT_EQ(largest({-0.0, 0.0}, dtype), 0);
    EXPECT_EQ(largest({-INFINITY, -INFINITY}, dtype), 0);
    EXPECT_EQ(largest({-INFINITY, 1, INFINITY}, dtype), 2);
    EXPECT_EQ(largest({1, NAN, INFINITY}, dtype), 1);
    EXPECT_EQ(largest({INFINITY, 1, NAN, NAN}, dtype), 2);
  }
}

TEST_F(CudaChoices, ArgmaxOfEveryRow) {
  for (const DType dtype : kFloats) {
    for (const int64_t vocab : {997, 4096, 151936}) {
      Sample logits({5, vocab}, dtype), out({5}, DType::i32);
      logits.fill_normal(static_cast<unsigned>(vocab));
      run(ops_->argmax, out, logits);
      const std::vector<double> values = logits.values();
      for (int64_t t = 0; t < 5; ++t) {
        const auto row = values.begin() + t * vocab;
        EXPECT_EQ(out.values()[static_cast<size_t>(t)], std::max_element(row, row + vocab) - row);
      }
    }
  }
}

TEST_F(CudaChoices, TopKTakesTheLargestFirstAndTheSmallerIndexOfEqualOnes) {
  using List = std::vector<double>;
  EXPECT_EQ(chosen({3, 1, 4, 1, 5}, 3), (List{4, 2, 0}));
  EXPECT_EQ(chosen({-3, -1, -4, -1, -5}, 3), (List{1, 3, 0}));
  EXPECT_EQ(chosen({2, 2, 2}, 2), (List{0, 1}));
  EXPECT_EQ(chosen({-0.0, 0.0}, 2), (List{0, 1}));
  EXPECT_EQ(chosen({7}, 1), (List{0}));
  EXPECT_EQ(chosen({-INFINITY, 0, INFINITY, -INFINITY}, 4), (List{2, 1, 0, 3}));
  EXPECT_EQ(chosen({1, 2, NAN, 3, NAN}, 3), (List{2, 4, 3}));
}

TEST_F(CudaChoices, TopKOfManyExperts) {
  for (const DType dtype : kFloats) {
    Sample logits({50, 130}, dtype, 1), out({50, 8}, DType::i32);
    logits.fill_normal(3);
    run(ops_->top_k, out, logits);
    const std::vector<double> values = logits.values(), got = out.values();
    for (size_t t = 0; t < 50; ++t) {
      std::vector<double> order(130);
      for (size_t e = 0; e < 130; ++e) order[e] = static_cast<double>(e);
      std::ranges::stable_sort(order, std::greater(),
                               [&](double e) { return values[t * 130 + static_cast<size_t>(e)]; });
      for (size_t c = 0; c < 8; ++c) ASSERT_EQ(got[t * 8 + c], order[c]) << t << " " << c;
    }
  }
}

TEST_F(CudaChoices, SoftmaxOfRoundsOnce) {
  for (const DType dtype : kFloats)
    for (const bool normalised : {false, true})
      for (const int64_t experts : {3, 17, 128}) {
        Sample logits({20, experts}, dtype, 1), index({20, 3}, DType::i32), out({20, 3}, dtype, 3);
        logits.fill_normal(5, 3);
        run(ops_->top_k, index, logits);
        run(ops_->routing_weights, out, logits, index, normalised);
        const std::vector<double> want = softmax(logits, index, normalised);
        std::vector<double> arithmetic;
        // Logits less the largest are below 24 here: exp within (24 + 2) units, twice, and a sum.
        for (const double w : want) arithmetic.push_back(64 * kUnit * w);
        expect_rounded(out, want, arithmetic);
      }
}

TEST_F(CudaChoices, SoftmaxOfHoldsAtTheEndsOfTheRange) {
  Sample logits({1, 3}, DType::f32), index({1, 2}, DType::i32), out({1, 2}, DType::f32);
  index.fill({0, 2});
  run(ops_->routing_weights, out, logits.fill({1e30, 0, -1e30}), index, true);
  EXPECT_EQ(out.values(), (std::vector<double>{1, 0}));
  run(ops_->routing_weights, out, logits.fill({-1e30, -1e30, -1e30}), index, true);
  EXPECT_EQ(out.values(), (std::vector<double>{0.5, 0.5}));
  run(ops_->routing_weights, out, logits.fill({1, NAN, 1}), index, false);
  EXPECT_TRUE(std::isnan(out.values()[0]));
}

// Matrices of `count` experts, from n x in random numbers each.
class Experts {
 public:
  Experts(int64_t count, const Shape& shape, DType dtype, int64_t offset) {
    for (int64_t e = 0; e < count; ++e) {
      samples_.push_back(std::make_unique<Sample>(shape, dtype, offset));
      samples_.back()->fill_normal(100 + static_cast<unsigned>(e));
      views.push_back(*samples_.back());
    }
  }
  std::vector<TensorView> views;

 private:
  std::vector<std::unique_ptr<Sample>> samples_;
};

TEST_F(CudaChoices, ExpertMatmulIsTheProductOfTheExpertThatEachChoiceNames) {
  constexpr int64_t kTokens = 20, kChoices = 3;
  for (const DType dtype : kFloats)
    for (const bool shared : {true, false})
      for (const auto& [n, in, offset] :
           {std::array<int64_t, 3>{11, 37, 1}, {16, 64, 0}, {33, 1000, 0}, {8, 64, 1}}) {
        const Experts experts(7, {n, in}, dtype, offset);
        Sample x(shared ? Shape{kTokens, in} : Shape{kTokens, kChoices, in}, dtype);
        Sample index({kTokens, kChoices}, DType::i32), out({kTokens, kChoices, n}, dtype, 5);
        x.fill_normal(1, 0.2);
        for (int64_t i = 0; i < kTokens * kChoices; ++i)  // leaves one expert out altogether
          index.set(i, static_cast<double>((i * i + i / 5) % 6));
        run(ops_->expert_matmul, out, x, index, experts.views);
        const Expected want = expert_product(x, index, experts.views);
        expect_rounded(out, want.values, want.arithmetic);
      }
}

TEST_F(CudaChoices, ExpertMatmulDependsOnARowsOwnChoiceAlone) {
  const Experts experts(4, {40, 96}, DType::bf16, 0);
  Sample x({30, 96}, DType::bf16), index({30, 2}, DType::i32), all({30, 2, 40}, DType::bf16);
  Sample one({1, 2, 40}, DType::bf16);
  x.fill_normal(1);
  for (int64_t i = 0; i < 60; ++i) index.set(i, static_cast<double>(i * 7 % 4));
  run(ops_->expert_matmul, all, x, index, experts.views);
  run(ops_->expert_matmul, one, x.view().slice(17, 1), index.view().slice(17, 1), experts.views);
  EXPECT_EQ(one.bits(), all.bits().substr(17 * one.bits().size(), one.bits().size()));
}

TEST_F(CudaChoices, WeightedSumRoundsOnce) {
  for (const DType dtype : kFloats)
    for (const int64_t width : {1, 7, 300}) {
      Sample x({5, 3, width}, dtype, 1), weights({5, 3}, dtype, 2), out({5, width}, dtype, 3);
      x.fill_normal(1);
      weights.fill_normal(2);
      run(ops_->weighted_sum, out, x, weights);
      const Expected want = weighted(x, weights);
      expect_rounded(out, want.values, want.arithmetic);
    }
}

TEST_F(CudaChoices, ReportAnIndexThatIsNoExpert) {
  Sample logits({2, 4}, DType::f32), index({2, 2}, DType::i32), out({2, 2}, DType::f32);
  logits.fill_normal(1);
  for (const int32_t bad : {4, -1}) {
    index.fill({0, 1, static_cast<double>(bad), 0});
    expect_refused([&] { run(ops_->routing_weights, out, logits, index, true); },
                   {"routing_weights", "below the 4", fmt::format("index {} at 2", bad)});
    EXPECT_TRUE(std::isnan(out.values()[2]));
    EXPECT_TRUE(std::isfinite(out.values()[1]));
    const Experts experts(4, {3, 4}, DType::f32, 0);
    Sample product({2, 2, 3}, DType::f32);
    expect_refused([&] { run(ops_->expert_matmul, product, logits, index, experts.views); },
                   {"expert_matmul", "its 4 experts", fmt::format("index {} at 2", bad)});
    for (size_t i = 0; i < 12; ++i)
      EXPECT_EQ(std::isnan(product.values()[i]), i / 3 == 2) << "element " << i;
  }
}

TEST_F(CudaChoices, OfNothingIsNothing) {
  Sample logits({0, 4}, DType::f32), none({0}, DType::i32), index({0, 2}, DType::i32);
  Sample weights({0, 2}, DType::f32), x({0, 2, 4}, DType::f32), out({0, 2, 3}, DType::f32);
  const Experts experts(2, {3, 4}, DType::f32, 0);
  run(ops_->argmax, none, logits);
  run(ops_->top_k, index, logits);
  run(ops_->routing_weights, weights, logits, index, true);
  run(ops_->expert_matmul, out, logits, index, experts.views);
  run(ops_->weighted_sum, logits, x, weights);
}

TEST_F(CudaChoices, RefuseWhatDoesNotFit) {
  Sample logits({2, 4}, DType::f32), index({2, 2}, DType::i32), many({2, 5}, DType::i32);
  Sample out({2, 2}, DType::f32), tokens({3}, DType::i32), product({2, 2, 3}, DType::f32);
  const Experts experts(481, {3, 4}, DType::f32, 0), none(0, {3, 4}, DType::f32, 0);
  expect_refused([&] { run(ops_->argmax, tokens, logits); }, {"argmax", "out", "[2]", "[3]"});
  expect_refused([&] { run(ops_->top_k, many, logits); }, {"top_k", "5 of 4"});
  expect_refused([&] { run(ops_->routing_weights, out, index, index, true); },
                 {"routing_weights", "int32"});
  expect_refused([&] { run(ops_->expert_matmul, product, logits, index, none.views); },
                 {"at least one expert"});
  expect_refused([&] { run(ops_->expert_matmul, product, logits, index, experts.views); },
                 {"at most 480 experts", "found 481"});
  expect_refused([&] { run(ops_->weighted_sum, out, product, logits); }, {"weights", "[2, 2]"});
}

}  // namespace
}  // namespace lockstep
