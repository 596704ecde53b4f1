#include "src/causes/choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace lockstep {
namespace {

// What a record comes to that chooses `chosen` by index among `values`, as many a row.
ExactNode explained(int64_t rows, const std::vector<float>& values,
                    const std::vector<int32_t>& chosen, Ties ties) {
  Tensor among(Shape{rows, std::ssize(values) / rows}, DType::f32);
  Tensor indices(Shape{rows, std::ssize(chosen) / rows}, DType::i32);
  std::ranges::copy(values, among.as<float>());
  std::ranges::copy(chosen, indices.as<int32_t>());
  RecordedTensor got{.dtype = DType::i32, .shape = indices.view().shape};
  for (int32_t row = 0; row < rows; ++row) got.rows.push_back({0, row});
  got.data = std::move(indices);
  return choices_explained(got, among, 0, ties);
}

bool says_order(const ExactNode& node) {
  return std::ranges::any_of(node.causes, [](const ExactNode::Cause& cause) {
    return cause.says == "the right choices in another order";
  });
}

// Two of four values are chosen in each row: the largest in their order, the largest in the
// opposite one, and one that is none of them.
TEST(Choices, InAnotherOrderAreRightWhereNoneWasPromised) {
  const auto node = [](Ties ties) {
    return explained(3, {4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1}, {0, 1, 1, 0, 3, 0}, ties);
  };
  const ExactNode any = node(Ties::any), first = node(Ties::first);
  EXPECT_EQ(any.wrong, 1);
  EXPECT_FALSE(says_order(any));
  EXPECT_EQ(first.wrong, 2);
  EXPECT_TRUE(says_order(first));
}

TEST(Choices, OfEqualValuesMayBeAnyWhereNoneWasPromised) {
  EXPECT_EQ(explained(1, {1, 2, 2}, {2}, Ties::any).wrong, 0);
  EXPECT_EQ(explained(1, {1, 2, 2}, {2}, Ties::first).wrong, 1);
}

// The rule is the judge's: where ops promise that NaN is the largest, a number beside one is wrong.
TEST(Choices, OfANumberBesideANaNAreWrongWhereTheNaNIsTheLargest) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(explained(1, {1, 3, kNaN}, {1}, Ties::any).wrong, 0);
  EXPECT_EQ(explained(1, {1, 3, kNaN}, {1}, Ties::first).wrong, 1);
}

}  // namespace
}  // namespace lockstep
