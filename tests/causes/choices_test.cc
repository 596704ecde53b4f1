#include "src/causes/choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

namespace lockstep {
namespace {

// What a record comes to that chooses `chosen` by index among `values`, as many a row. requests: of
// the rows; empty: all are of one, the first.
ExactNode explained(int64_t rows, const std::vector<float>& values,
                    const std::vector<int32_t>& chosen, Ties ties,
                    const std::vector<int32_t>& requests = {}) {
  Tensor among(Shape{rows, std::ssize(values) / rows}, DType::f32);
  Tensor indices(Shape{rows, std::ssize(chosen) / rows}, DType::i32);
  std::ranges::copy(values, among.as<float>());
  std::ranges::copy(chosen, indices.as<int32_t>());
  RecordedTensor got{.dtype = DType::i32, .shape = indices.view().shape};
  for (int32_t row = 0; row < rows; ++row)
    got.rows.push_back({requests.empty() ? 0 : requests[static_cast<size_t>(row)], row});
  got.data = std::move(indices);
  return choices_explained(got, among, 0, ties);
}

bool says(const ExactNode& node, const std::string& cause) {
  return std::ranges::count(node.causes, cause, &ExactNode::Cause::says) > 0;
}
bool says_order(const ExactNode& node) { return says(node, "the right choices in another order"); }

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

// The row that is wrong has the runner-up, which stands in the first half: so would the others have
// theirs, if that half were all that is looked at. The choice of a right row in the second half
// says that it is not.
TEST(Choices, AreNoneOfAWayThatARightRowDidNotGo) {
  const std::vector<float> wrong = {0, 3, 1, 0, 4, 0, 0, 0}, low = {0, 0, 5, 0, 4, 1, 0, 0},
                           high = {0, 0, 1, 0, 4, 5, 0, 0};
  const auto beside = [&](const std::vector<float>& right, int32_t choice) {
    std::vector<float> values = right;
    values.insert(values.end(), wrong.begin(), wrong.end());
    return explained(2, values, {choice, 1}, Ties::any);
  };
  const std::string half = "the largest of the first 4 alone";
  EXPECT_TRUE(says(explained(1, wrong, {1}, Ties::any), half));
  EXPECT_TRUE(says(beside(low, 2), half));
  EXPECT_FALSE(says(beside(high, 5), half));
  EXPECT_TRUE(says(beside(high, 1), half)) << "a row that is wrong too refutes nothing";
  EXPECT_TRUE(says(beside(high, 5), "the runner-up chosen for the largest"));
}

// Rows that a bug spared, as those of another tile are, refute it no more than they are.
TEST(Choices, MayBeWrongInSomeRowsAlone) {
  const std::vector<float> wrong = {0, 3, 1, 0, 4, 3.5F, 0, 0}, high = {0, 0, 1, 0, 4, 5, 0, 0};
  std::vector<float> values;
  for (const auto* row : {&wrong, &wrong, &high})
    values.insert(values.end(), row->begin(), row->end());
  EXPECT_TRUE(says(explained(3, values, {1, 1, 5}, Ties::any), "the largest of the first 4 alone"));
  // Beside NaN any choice is right, and says nothing of how others are chosen.
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(
      says(explained(2, {0, 3, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, kNaN}, {1, 7}, Ties::any),
           "the largest of the first 4 alone"));
}

// A row of another request that is right refutes what is said of this one's, but where the bug is
// in other requests too and spared that one.
TEST(Choices, AreRefutedByRowsOfOtherRequestsUnlessTheseAreWrongToo) {
  const std::vector<float> wrong = {0, 3, 1, 0, 4, 0, 0, 0}, high = {0, 0, 1, 0, 4, 5, 0, 0};
  const auto says_half = [&](const std::vector<const std::vector<float>*>& rows,
                             const std::vector<int32_t>& chosen) {
    std::vector<float> values;
    for (const auto* row : rows) values.insert(values.end(), row->begin(), row->end());
    const auto count = static_cast<int32_t>(rows.size());
    std::vector<int32_t> requests;
    for (int32_t row = 0; row < count; ++row) requests.push_back(row);
    return says(explained(count, values, chosen, Ties::any, requests),
                "the largest of the first 4 alone");
  };
  EXPECT_FALSE(says_half({&wrong, &high}, {1, 5}));
  EXPECT_TRUE(says_half({&wrong, &wrong, &high}, {1, 1, 5}));
}

// However many are wrong, the many right ones that are looked at refute as what they stand for.
TEST(Choices, OfVeryManyRowsAreRefutedByAsMany) {
  const std::vector<float> wrong = {0, 3, 1, 0, 4, 0, 0, 0}, high = {0, 0, 1, 0, 4, 5, 0, 0};
  std::vector<float> values;
  std::vector<int32_t> chosen;
  for (int row = 0; row < 600; ++row) {
    const bool is_wrong = row % 3 == 0;
    const std::vector<float>& of = is_wrong ? wrong : high;
    values.insert(values.end(), of.begin(), of.end());
    chosen.push_back(is_wrong ? 1 : 5);
  }
  const ExactNode node = explained(600, values, chosen, Ties::any);
  EXPECT_FALSE(says(node, "the largest of the first 4 alone"));
  EXPECT_TRUE(says(node, "the runner-up chosen for the largest"));
}

// -5 is furthest from 0 in the row that is wrong, and -6 in the right one.
TEST(Choices, AreNotUnsignedWhereARightRowIsNot) {
  const std::string unsign = "the largest without its sign";
  EXPECT_TRUE(says(explained(2, {1, 3, -5, 2, 4, 1, -3, 2}, {2, 0}, Ties::any), unsign));
  EXPECT_FALSE(says(explained(2, {1, 3, -5, 2, 4, 1, -6, 2}, {2, 0}, Ties::any), unsign));
  EXPECT_TRUE(says(explained(2, {1, 3, -5, 2, 1, -6, 2, 6}, {2, 3}, Ties::any), unsign));
}

// The rule is the judge's: where ops promise that NaN is the largest, a number beside one is wrong.
TEST(Choices, OfANumberBesideANaNAreWrongWhereTheNaNIsTheLargest) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(explained(1, {1, 3, kNaN}, {1}, Ties::any).wrong, 0);
  EXPECT_EQ(explained(1, {1, 3, kNaN}, {1}, Ties::first).wrong, 1);
}

}  // namespace
}  // namespace lockstep
