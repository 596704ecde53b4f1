// The tensors of ranks as those of one model, and where they are not alike.
#include "src/ranks/judge/join.h"

#include <gtest/gtest.h>

#include "probes/digest.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

RankTensor tensor(const Point& point, int layer, const Shape& shape, std::vector<float> values,
                  std::optional<Shard> shard = {}) {
  return {.point = &point,
          .layer = layer,
          .rows = {{0, 0}, {0, 1}},
          .shard = shard,
          .data = tensor_of<float>(values, shape, DType::f32)};
}

RankPass pass_of(RankTensor tensor) {
  RankPass pass;
  pass.info.rows = {{.row = {0, 0}, .token = 5, .slot = 0}, {.row = {0, 1}, .token = 6, .slot = 1}};
  pass.tensors.push_back(std::move(tensor));
  return pass;
}

std::vector<float> numbers(const Tensor& tensor) {
  const auto* first = tensor.as<float>();
  return {first, first + tensor.view().count()};
}

JoinedPass joined(const std::vector<RankTensor>& tensors) {
  std::vector<RankPass> passes;
  for (const RankTensor& one : tensors)
    passes.push_back(rank_pass_from(bytes_of(pass_of(one))));  // as they come to rank 0
  return join(std::move(passes));
}

TEST(Join, PutsPartsAlongTheirAxis) {
  const JoinedPass whole = joined(
      {tensor(point("mlp.act"), 0, {2, 1}, {1, 4}, Shard{.axis = 1, .offset = 0, .extent = 3}),
       tensor(point("mlp.act"), 0, {2, 2}, {2, 3, 5, 6},
              Shard{.axis = 1, .offset = 1, .extent = 3})});
  ASSERT_EQ(whole.tensors.size(), 1);
  EXPECT_EQ(whole.tensors[0].data.view().shape, Shape({2, 3}));
  EXPECT_EQ(numbers(whole.tensors[0].data), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(whole.apart.empty());
}

TEST(Join, HoldsCopiesOfAHeadAgainstEachOther) {
  const Shard all{.axis = 1, .offset = 0, .extent = 1};
  const auto head = [&](float second) {
    return tensor(point("attn.k"), 2, {2, 1, 2}, {1, 2, 3, second}, all);
  };
  EXPECT_TRUE(joined({head(4), head(4)}).apart.empty());
  const JoinedPass apart = joined({head(4), head(5)});
  ASSERT_EQ(apart.apart.size(), 1);
  EXPECT_EQ(apart.apart[0].finding.position, 1);
  EXPECT_EQ(numbers(apart.tensors[0].data).back(), 4);
}

// Products of other shapes may sum in another order: who has only the first head has other bits.
TEST(Join, KeepsCopiesOfPartsOfAnotherShape) {
  const auto heads = [&](int64_t first, std::vector<float> values) {
    const auto count = std::ssize(values) / 2;
    return tensor(point("attn.k"), 2, {2, count, 1}, std::move(values),
                  Shard{.axis = 1, .offset = first, .extent = 2});
  };
  const JoinedPass same = joined({heads(0, {1, 2}), heads(0, {1, 5, 2, 6}), heads(1, {5, 6})});
  EXPECT_TRUE(same.apart.empty());
  EXPECT_TRUE(same.copies.empty());
  const JoinedPass other = joined({heads(0, {1, 2}), heads(0, {1, 5, 3, 6}), heads(1, {5, 6})});
  EXPECT_TRUE(other.apart.empty());
  ASSERT_EQ(other.copies.size(), 1);
  EXPECT_EQ(other.copies[0].rank, 1);
  EXPECT_EQ(numbers(other.tensors[0].data), (std::vector<float>{1, 5, 2, 6}));
}

TEST(Join, NamesTheRankThatLeaves) {
  const auto norm = [](float last) {
    return tensor(point("attn.norm"), 7, {2, 2}, {1, 2, 3, last});
  };
  const JoinedPass apart = joined({norm(4), norm(4), norm(4.5)});
  ASSERT_EQ(apart.apart.size(), 1);
  EXPECT_NE(apart.apart[0].finding.rule.find("rank 2 leaves rank 0 at layer 7 attn.norm"),
            std::string::npos)
      << apart.apart[0].finding.rule;
  EXPECT_EQ(apart.apart[0].finding.position, 1);
  EXPECT_EQ(apart.versions.size(), 1);
  EXPECT_EQ(apart.apart[0].rank, 2);
  const float own[] = {3, 4.5}, first[] = {3, 4};
  EXPECT_EQ(apart.apart[0].own, hash_of(own, sizeof own));
  EXPECT_EQ(apart.apart[0].first, hash_of(first, sizeof first));
}

TEST(Join, MissesAPart) {
  const JoinedPass lacks = joined(
      {tensor(point("mlp.act"), 0, {2, 1}, {1, 4}, Shard{.axis = 1, .offset = 0, .extent = 3}),
       tensor(point("mlp.act"), 0, {2, 1}, {2, 5}, Shard{.axis = 1, .offset = 1, .extent = 3})});
  EXPECT_TRUE(lacks.tensors.empty());
  EXPECT_EQ(lacks.apart.size(), 1);
}

TEST(Join, SeesThatARankComputesOtherRows) {
  std::vector<RankPass> passes;
  for (int rank = 0; rank < 2; ++rank)
    passes.push_back(pass_of(tensor(point("attn.norm"), 0, {2, 1}, {1, 2})));
  passes[1].info.rows[1].token = 9;
  const JoinedPass apart = join(std::move(passes));
  ASSERT_EQ(apart.apart.size(), 1);
  EXPECT_EQ(apart.apart[0].finding.position, 1);
  EXPECT_NE(apart.apart[0].finding.rule.find("token 9"), std::string::npos)
      << apart.apart[0].finding.rule;
}

}  // namespace
}  // namespace lockstep
