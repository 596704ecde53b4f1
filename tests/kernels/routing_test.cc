#include "kernels/routing.h"

#include "kernels/base/thread_pool.h"
#include "tests/kernels/expected.h"

namespace lockstep {
namespace {

std::vector<double> chosen(const std::vector<double>& logits, int64_t k) {
  Sample in({1, static_cast<int64_t>(logits.size())}, DType::f32), out({1, k}, DType::i32);
  top_k({}, out, in.fill(logits));
  return out.values();
}

TEST(TopK, TakesTheLargestFirstAndTheSmallerIndexOfEqualOnes) {
  using List = std::vector<double>;
  EXPECT_EQ(chosen({3, 1, 4, 1, 5}, 3), (List{4, 2, 0}));
  EXPECT_EQ(chosen({-3, -1, -4, -1, -5}, 3), (List{1, 3, 0}));
  EXPECT_EQ(chosen({2, 2, 2}, 2), (List{0, 1}));
  EXPECT_EQ(chosen({-0.0, 0.0}, 2), (List{0, 1}));
  EXPECT_EQ(chosen({7}, 1), (List{0}));
  EXPECT_EQ(chosen({-INFINITY, 0, INFINITY}, 2), (List{2, 1}));
}

TEST(TopK, ShowsANaN) { EXPECT_EQ(chosen({1, 2, NAN, 3, NAN}, 3), (std::vector<double>{2, 4, 3})); }

TEST(TopK, IsTheSameForAnyThreadsAndBatch) {
  for (const DType dtype : kFloats) {
    Sample logits({200, 33}, dtype, 1), all({200, 5}, DType::i32), one({1, 5}, DType::i32);
    logits.fill_normal(3);
    ThreadPool pool(3);
    top_k({.threads = &pool}, all, logits);
    top_k({}, one, logits.view().slice(150, 1));
    EXPECT_EQ(one.bits(), all.bits().substr(150 * one.bits().size(), one.bits().size()));
  }
}

TEST(SoftmaxOf, RoundsOnce) {
  for (const DType dtype : kFloats)
    for (const bool normalised : {false, true}) {
      Sample logits({20, 17}, dtype, 1), index({20, 3}, DType::i32), out({20, 3}, dtype, 3);
      logits.fill_normal(5, 3);
      top_k({}, index, logits);
      routing_weights({}, out, logits, index, normalised);
      const std::vector<double> want = softmax(logits, index, normalised);
      std::vector<double> arithmetic;
      // Logits less the largest are below 20 here: exp within (20 + 2) units, twice, and a sum.
      for (const double w : want) arithmetic.push_back(64 * kUnit * w);
      expect_rounded(out, want, arithmetic);
    }
}

TEST(SoftmaxOf, HoldsAtTheEndsOfTheRange) {
  Sample logits({1, 3}, DType::f32), index({1, 2}, DType::i32), out({1, 2}, DType::f32);
  index.fill({0, 2});
  routing_weights({}, out, logits.fill({1e30, 0, -1e30}), index, true);
  EXPECT_EQ(out.values(), (std::vector<double>{1, 0}));
  routing_weights({}, out, logits.fill({-1e30, -1e30, -1e30}), index, true);
  EXPECT_EQ(out.values(), (std::vector<double>{0.5, 0.5}));
  routing_weights({}, out, logits.fill({1, NAN, 1}), index, false);
  EXPECT_TRUE(std::isnan(out.values()[0]));
}

TEST(SoftmaxOf, WeightsSumToOneOnlyWhenNormalised) {
  Sample logits({1, 8}, DType::f32), index({1, 2}, DType::i32), out({1, 2}, DType::f32);
  logits.fill_normal(1);
  index.fill({6, 1});
  routing_weights({}, out, logits, index, true);
  EXPECT_NEAR(out.values()[0] + out.values()[1], 1, 1e-6);
  routing_weights({}, out, logits, index, false);
  EXPECT_LT(out.values()[0] + out.values()[1], 0.9);
}

TEST(Routing, RefusesWhatDoesNotFit) {
  Sample logits({2, 4}, DType::f32), index({2, 2}, DType::i32), many({2, 5}, DType::i32);
  Sample out({2, 2}, DType::f32), floats({2, 2}, DType::f32), rows({3, 2}, DType::i32);
  logits.fill_normal(1);
  expect_refused([&] { top_k({}, many, logits); }, {"top_k", "5 of 4"});
  expect_refused([&] { top_k({}, floats, logits); }, {"out", "int32", "fp32"});
  expect_refused([&] { top_k({}, rows, logits); }, {"out", "[2, 2]", "[3, 2]"});
  expect_refused(
      [&] {
        routing_weights({}, out, logits, index.fill({0, 1, 4, 0}), true);
      },
      {"below the 4", "index 4"});
  expect_refused(
      [&] {
        routing_weights({}, out, logits, index.fill({0, 1, -1, 0}), true);
      },
      {"index -1"});
}

}  // namespace
}  // namespace lockstep
