#include "src/model/weights.h"

#include <gtest/gtest.h>

#include "src/model/model.h"
#include "tests/fixtures.h"

namespace lockstep {
namespace {

TEST(Weights, AreTheMappedMemoryWhenTheDtypeFits) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const Weights weights(checkpoint, DType::bf16);
  EXPECT_EQ(weights.embed.data, checkpoint.tensor("model.embed_tokens.weight").data);
  EXPECT_EQ(weights.layers[5].down.codes.data,
            checkpoint.tensor("model.layers.5.mlp.down_proj.weight").data);
}

TEST(Weights, ATiedHeadIsTheEmbeddingInEveryDtype) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Weights weights(checkpoint, dtype);
    EXPECT_EQ(weights.lm_head.codes.data, weights.embed.data);
    EXPECT_EQ(weights.lm_head.codes.dtype, dtype);
  }
}

TEST(Weights, BiasesAndNormsAreThereWhereTheModelHasThem) {
  const Checkpoint qwen2 = Checkpoint::open(data_path("bard-qwen2.5"));
  const Weights a(qwen2, DType::bf16);
  EXPECT_FALSE(a.layers[0].q_bias.empty());
  EXPECT_TRUE(a.layers[0].o_bias.empty());
  EXPECT_TRUE(a.layers[0].q_norm.empty());
  const Checkpoint qwen3 = Checkpoint::open(data_path("bard-qwen3"));
  const Weights b(qwen3, DType::bf16);
  EXPECT_TRUE(b.layers[0].q_bias.empty());
  EXPECT_FALSE(b.layers[0].q_norm.empty());
  const Checkpoint biased = Checkpoint::open(data_path("tiny/qwen3-bias-mqa"));
  const Weights c(biased, DType::bf16);
  EXPECT_FALSE(c.layers[0].o_bias.empty());
}

}  // namespace
}  // namespace lockstep
