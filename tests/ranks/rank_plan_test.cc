// How a model is cut: all of it is in some rank, and each query head reads its own K/V head.
#include "src/ranks/rank_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "kernels/base/check.h"
#include "src/ranks/rank_executor.h"

namespace lockstep {
namespace {

ModelConfig model(int64_t heads, int64_t kv_heads) {
  ModelConfig config;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = 8;
  config.intermediate = 24;
  config.vocab = 100;
  config.o_bias = true;
  return config;
}

// The K/V head of the whole model that a rank's own kernel reads for its query head i.
int64_t read_by(const RankPlan& plan, int64_t i) {
  return plan.kv_heads.first + i / (plan.local.heads / plan.local.kv_heads);
}

TEST(RankPlan, LetsEachQueryHeadReadItsOwnKeys) {
  for (const auto& [heads, kv, ranks] : {std::array<int, 3>{6, 2, 1},
                                         {6, 2, 2},
                                         {6, 2, 3},
                                         {6, 2, 6},
                                         {4, 1, 4},
                                         {4, 4, 2},
                                         {8, 2, 4}}) {
    const ModelConfig config = model(heads, kv);
    int64_t next = 0, tokens = 0, inner = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const RankPlan plan = plan_of(config, rank, ranks);
      for (int64_t i = 0; i < plan.local.heads; ++i, ++next)
        EXPECT_EQ(read_by(plan, i), next / (heads / kv)) << heads << " " << kv << " " << ranks;
      EXPECT_EQ(plan.vocab.first, tokens);
      tokens += plan.vocab.count;
      inner += plan.inner.count;
      EXPECT_EQ(plan.local.o_bias, rank == 0);
      EXPECT_EQ(plan.local.vocab, 100);
    }
    EXPECT_EQ(next, heads);
    EXPECT_EQ(tokens, 100);
    EXPECT_EQ(inner, 24);
  }
}

TEST(RankPlan, RefusesWhatDoesNotDivide) {
  EXPECT_THROW(plan_of(model(6, 2), 0, 4), Error);  // query heads
  EXPECT_THROW(plan_of(model(5, 5), 0, 5), Error);  // values of the MLP
  // Rank 0 of 4 would have heads 0-2, which read two heads of K and V, two and one.
  EXPECT_THROW(plan_of(model(12, 6), 0, 4), Error);
}

// Of fewer rows than there is room for the last ranks have fewer, or none.
TEST(RankPlan, SharesEveryRowOnce) {
  for (const int64_t tokens : {1, 2, 5, 8, 9})
    for (const int ranks : {1, 2, 4}) {
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const RankPlan plan{.rank = rank, .ranks = ranks};
        const Part rows = plan.rows_of(tokens);
        EXPECT_EQ(rows.first, next) << tokens << " " << rank << " of " << ranks;
        EXPECT_LE(rows.count, plan.row_room(tokens));
        next += rows.count;
      }
      EXPECT_EQ(next, tokens);
    }
}

TEST(RankPlan, SaysWhichPartATensorIs) {
  const RankPlan plan = plan_of(model(6, 2), 1, 3);
  EXPECT_EQ(plan.shard_of(point("attn.q")), (Shard{.axis = 1, .offset = 2, .extent = 6}));
  EXPECT_EQ(plan.shard_of(point("attn.kv")), (Shard{.axis = 2, .offset = 0, .extent = 2}));
  EXPECT_EQ(plan.shard_of(point("mlp.act")), (Shard{.axis = 1, .offset = 8, .extent = 24}));
  EXPECT_EQ(plan.shard_of(point("attn.o_partial")), (Shard{.axis = 1, .offset = 1, .extent = 3}));
  for (const char* whole : {"embed", "attn.norm", "attn.o", "mlp.down", "logits", "token"})
    EXPECT_EQ(plan.shard_of(*find_point(whole)), std::nullopt) << whole;
}

Batch batch_of(std::vector<int32_t> tokens) {
  const int64_t count = std::ssize(tokens);
  Batch batch;
  batch.tokens = tensor_of<int32_t>(tokens, {count}, DType::i32);
  return batch;
}

std::vector<int32_t> numbers_of(const TensorView& tensor) {
  return {tensor.as<int32_t>(), tensor.as<int32_t>() + tensor.count()};
}

// A graph that was captured for so many tokens reads the lookup of each pass where the first was.
TEST(RankLookup, IsWhereTheLastOneOfItsSizeWas) {
  ModelConfig config = model(4, 2);
  config.hidden = 2;
  RankParts rank{.plan = plan_of(config, 1, 2), .dtype = DType::f32};
  prepare_lookup(rank, batch_of({49, 50, 99}));
  const RankLookup first = rank.lookups.at(4);
  const std::vector<int32_t> rows = {0, 0, 49, 0}, taken = {4, 1, 2, 4};
  EXPECT_EQ(numbers_of(first.rows), rows)
      << "row 50 is the first of rank 1, and rows that pad are 0";
  EXPECT_EQ(numbers_of(first.taken), taken) << "the fifth row is that of zeros";
  EXPECT_EQ(first.found.view().rows(), 5);
  EXPECT_EQ(first.found.as<float>()[8], 0);
  prepare_lookup(rank, batch_of(std::vector<int32_t>(5, 60)));
  prepare_lookup(rank, batch_of({60, 1, 2, 61}));
  const std::vector<int32_t> other = {0, 4, 4, 3};
  EXPECT_EQ(numbers_of(first.taken), other) << "the same memory";
  EXPECT_EQ(rank.lookups.size(), 2u);
}

// Where all of a pass is looked at in the end, no share takes the place of another.
TEST(Shares, HaveMemoryOfTheirOwnInEachHalfOfALayer) {
  ModelConfig config = model(4, 2);
  config.hidden = 2;
  config.layers = 2;
  using Lifetime = Activations::Lifetime;
  Activations whole(config, DType::f32, Device::cpu, Lifetime::pass, /*over_ranks=*/true);
  whole.resize(3, 1);
  std::set<const void*> places = {whole.partial.data};
  for (int half = 0; half < 4; ++half) {
    whole.next_half();
    places.insert(whole.partial.data);
    EXPECT_EQ(whole.partial.count(), 6);
  }
  EXPECT_EQ(places.size(), 5u) << "of embed, and of attention and MLP of two layers";
  Activations brief(config, DType::f32, Device::cpu, Lifetime::layer, /*over_ranks=*/true);
  brief.resize(3, 1);
  EXPECT_TRUE(brief.partial.empty()) << "it is shown where the sum will be";
}

}  // namespace
}  // namespace lockstep
