#include "src/causes/choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace lockstep {
namespace {

// Three rows of four values of which two are chosen each: the largest in their order, the largest
// in the opposite one, and one that is none of them.
ExactNode explained(Ties ties) {
  Tensor values(Shape{3, 4}, DType::f32), chosen(Shape{3, 2}, DType::i32);
  RecordedTensor got{.rows = {{0, 0}, {0, 1}, {0, 2}}};
  for (int64_t i = 0; i < 12; ++i) values.as<float>()[i] = static_cast<float>(4 - i % 4);
  std::ranges::copy(std::vector<int32_t>{0, 1, 1, 0, 3, 0}, chosen.as<int32_t>());
  got.shape = chosen.view().shape;
  got.dtype = DType::i32;
  got.data = std::move(chosen);
  return choices_explained(got, values, 0, ties);
}

bool says_order(const ExactNode& node) {
  return std::ranges::any_of(node.causes, [](const ExactNode::Cause& cause) {
    return cause.says == "the right choices in another order";
  });
}

TEST(Choices, InAnotherOrderAreRightWhereNoneWasPromised) {
  const ExactNode any = explained(Ties::any), first = explained(Ties::first);
  EXPECT_EQ(any.wrong, 1);
  EXPECT_FALSE(says_order(any));
  EXPECT_EQ(first.wrong, 2);
  EXPECT_TRUE(says_order(first));
}

TEST(Choices, OfEqualValuesMayBeAnyWhereNoneWasPromised) {
  Tensor values(Shape{1, 3}, DType::f32), chosen(Shape{1, 1}, DType::i32);
  std::ranges::copy(std::vector<float>{1, 2, 2}, values.as<float>());
  chosen.as<int32_t>()[0] = 2;
  RecordedTensor got{.rows = {{0, 0}}};
  got.shape = chosen.view().shape;
  got.dtype = DType::i32;
  got.data = std::move(chosen);
  EXPECT_EQ(choices_explained(got, values, 0, Ties::any).wrong, 0);
  EXPECT_EQ(choices_explained(got, values, 0, Ties::first).wrong, 1);
}

// The rule is the judge's: where ops promise that NaN is the largest, a number beside one is wrong.
TEST(Choices, OfANumberBesideANaNAreWrongWhereTheNaNIsTheLargest) {
  Tensor values(Shape{1, 3}, DType::f32), chosen(Shape{1, 1}, DType::i32);
  std::ranges::copy(std::vector<float>{1, 3, std::numeric_limits<float>::quiet_NaN()},
                    values.as<float>());
  chosen.as<int32_t>()[0] = 1;
  RecordedTensor got{.rows = {{0, 0}}};
  got.shape = chosen.view().shape;
  got.dtype = DType::i32;
  got.data = std::move(chosen);
  EXPECT_EQ(choices_explained(got, values, 0, Ties::any).wrong, 0);
  EXPECT_EQ(choices_explained(got, values, 0, Ties::first).wrong, 1);
}

}  // namespace
}  // namespace lockstep
