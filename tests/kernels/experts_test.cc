#include "kernels/experts.h"

#include <memory>

#include "kernels/base/thread_pool.h"
#include "kernels/matmul.h"
#include "tests/kernels/expected.h"

namespace lockstep {
namespace {

// Matrices of `count` experts, from n x in random numbers each.
class Experts {
 public:
  Experts(int64_t count, const Shape& shape, DType dtype) {
    for (int64_t e = 0; e < count; ++e) {
      samples_.push_back(std::make_unique<Sample>(shape, dtype, 1));
      samples_.back()->fill_normal(100 + static_cast<unsigned>(e));
      views.push_back(*samples_.back());
    }
  }
  std::vector<TensorView> views;

 private:
  std::vector<std::unique_ptr<Sample>> samples_;
};

// Choices of 3 among 7 experts that leave one out altogether.
Sample& choose(Sample& index) {
  for (int64_t i = 0; i < index.view().count(); ++i)
    index.set(i, static_cast<double>((i * i + i / 5) % 6));
  return index;
}

TEST(ExpertMatmul, IsTheProductOfTheExpertThatEachChoiceNames) {
  constexpr int64_t kTokens = 20, kChoices = 3, kIn = 37, kOut = 11;
  for (const DType dtype : kFloats)
    for (const bool shared : {true, false}) {
      const Experts experts(7, {kOut, kIn}, dtype);
      Sample x(shared ? Shape{kTokens, kIn} : Shape{kTokens, kChoices, kIn}, dtype, 3);
      Sample index({kTokens, kChoices}, DType::i32), out({kTokens, kChoices, kOut}, dtype, 5);
      x.fill_normal(1);
      choose(index);
      expert_matmul({}, out, x, index, experts.views);
      const Expected want = expert_product(x, index, experts.views);
      expect_rounded(out, want.values, want.arithmetic);
    }
}

TEST(ExpertMatmul, RefusesWhatDoesNotFit) {
  const Experts experts(2, {3, 4}, DType::f32), half(2, {3, 4}, DType::bf16);
  Sample x({2, 4}, DType::f32), index({2, 2}, DType::i32), out({2, 2, 3}, DType::f32);
  Sample flat({2, 3}, DType::f32);
  x.fill_normal(1);
  index.fill({0, 1, 1, 0});
  expect_refused([&] { expert_matmul({}, out, x, index, {}); }, {"at least one expert"});
  expect_refused([&] { expert_matmul({}, out, x, index, half.views); }, {"weights", "bf16"});
  expect_refused([&] { expert_matmul({}, flat, x, index, experts.views); }, {"out", "[2, 2, 3]"});
  expect_refused([&] { expert_matmul({}, out, flat, index, experts.views); }, {"x", "[2, 4]"});
  expect_refused(
      [&] {
        expert_matmul({}, out, x, index.fill({0, 1, 2, 0}), experts.views);
      },
      {"below its 2 experts", "index 2 at 2"});
}

TEST(WeightedSum, RoundsOnce) {
  on_every_isa([] {
    for (const DType dtype : kFloats)
      for (const int64_t width : {1, 7, 16, 33}) {
        Sample x({5, 3, width}, dtype, 1), weights({5, 3}, dtype, 2), out({5, width}, dtype, 3);
        x.fill_normal(1);
        weights.fill_normal(2);
        weighted_sum({}, out, x, weights);
        const Expected want = weighted(x, weights);
        expect_rounded(out, want.values, want.arithmetic);
      }
  });
}

TEST(WeightedSum, ThreadsAndBatchDoNotChangeABit) {
  Sample x({90, 4, 301}, DType::bf16), weights({90, 4}, DType::bf16);
  Sample alone({90, 301}, DType::bf16), out({90, 301}, DType::bf16), one({1, 301}, DType::bf16);
  x.fill_normal(1);
  weights.fill_normal(2);
  ThreadPool pool(3);
  weighted_sum({}, alone, x, weights);
  weighted_sum({.threads = &pool}, out, x, weights);
  EXPECT_EQ(out.bits(), alone.bits());
  weighted_sum({}, one, x.view().slice(50, 1), weights.view().slice(50, 1));
  EXPECT_EQ(one.bits(), alone.bits().substr(50 * one.bits().size(), one.bits().size()));
}

TEST(WeightedSum, RefusesWhatDoesNotFit) {
  Sample x({2, 3, 4}, DType::f32), weights({2, 3}, DType::f32), out({2, 4}, DType::f32);
  Sample other({3, 2}, DType::f32), flat({2, 12}, DType::f32);
  expect_refused([&] { weighted_sum({}, out, x, other); }, {"weights", "[2, 3]", "[3, 2]"});
  expect_refused([&] { weighted_sum({}, out, flat, weights); }, {"3 axes"});
  expect_refused([&] { weighted_sum({}, other, x, weights); }, {"out", "[2, 4]"});
}

}  // namespace
}  // namespace lockstep
