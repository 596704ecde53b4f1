#include "src/causes/choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>

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

// Row 1 chooses what is the largest of row 0, and of its own first value alone.
TEST(Choices, OfARuleThatMoreRowsSpeakAgainstAreNotSaidToFollowIt) {
  using Row = std::pair<std::vector<float>, int32_t>;
  const auto causes = [](const std::vector<Row>& others) {
    std::vector<float> values = {5, 1, 0, 0, 1, 5, 4, 0};
    std::vector<int32_t> chosen = {0, 0};
    for (const auto& [row, index] : others) {
      values.insert(values.end(), row.begin(), row.end());
      chosen.push_back(index);
    }
    std::set<std::string> says;
    const auto rows = static_cast<int64_t>(chosen.size());
    for (const auto& cause : explained(rows, values, chosen, Ties::first).causes)
      says.insert(cause.says);
    return says;
  };
  const std::string by_row = "the choice of the pass's first row in every row";
  const std::string by_part = "the largest of the first 1 alone";
  const Row against = {{0, 0, 9, 1}, 2}, beside = {{9, 0, 0, 1}, 0}, fits = {{1, 7, 2, 0}, 0};
  EXPECT_TRUE(causes({beside, beside}).contains(by_row));
  EXPECT_TRUE(causes({beside, beside}).contains(by_part));
  EXPECT_TRUE(causes({against}).contains(by_part)) << "a bug may spare a row";
  for (const std::string& rule : {by_row, by_part}) {
    EXPECT_FALSE(causes({against, against}).contains(rule)) << rule;
    EXPECT_TRUE(causes({against, against, fits}).contains(rule)) << rule;
  }
  EXPECT_TRUE(causes({against, against}).contains("the index -1")) << "which is of that row alone";
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
