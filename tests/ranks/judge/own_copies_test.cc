// Copies of K/V heads that come of products of another shape: right by themselves, or wrong.
#include "src/ranks/judge/own_copies.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/session/reference_library.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

constexpr int kLayer = 1;
constexpr int64_t kHeads = 2, kDim = 32;  // of K and V; with 3 ranks, rank 1 holds both

// bard-qwen3 over three ranks.
class OwnCopiesTest : public testing::Test {
 protected:
  static const Checkpoint& checkpoint() {
    static const Checkpoint open = Checkpoint::open(data_path("bard-qwen3"));
    return open;
  }
  OwnCopiesTest() {
    pass_.info.rows = {{.row = {0, 0}, .token = 5}, {.row = {0, 1}, .token = 6}};
    Tensor norm({2, checkpoint().config().hidden}, DType::f32);
    for (int64_t i = 0; i < norm.view().count(); ++i)
      norm.as<float>()[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i + 1)));
    pass_.tensors.push_back({&point("attn.norm"), kLayer, rows_, {}, norm});
    const std::vector<int32_t> tokens(2);
    const std::vector<int64_t> lengths = {2, 2};
    OracleCall call{.place = {&point("attn.v"), kLayer}, .dtype = DType::f32, .inputs = {norm}};
    call.rows = rows_, call.tokens = tokens, call.lengths = lengths;
    const Exact exact = oracle_->evaluate(call);
    Tensor v({2, kHeads, kDim}, DType::f32);
    for (int64_t i = 0; i < v.view().count(); ++i)
      v.as<float>()[i] = static_cast<float>(exact.want[i]);
    pass_.tensors.push_back({&point("attn.v"), kLayer, rows_, {}, v});
  }

  // Rank 1 has both heads of v, as the joined pass but for what `change` does to them.
  std::vector<Apart> judged(float (*change)(float), bool by_oracle = true) {
    Tensor own = copy_on(Device::cpu, pass_.tensors[1].data);
    for (int64_t i = 0; i < own.view().count(); ++i)
      own.as<float>()[i] = change(own.as<float>()[i]);
    const Shard both{.axis = 1, .offset = 0, .extent = kHeads};
    pass_.copies = {{1, {&point("attn.v"), kLayer, rows_, both, own}}};
    return copies_.judge(pass_, by_oracle ? oracle_.get() : nullptr);
  }
  // Then its cache of two positions has that V, off by so much, and zeros as K.
  std::vector<Apart> judged_cache(float by) {
    const Tensor own = pass_.copies.at(0).part.data;
    Tensor mine({2, 2, kHeads, kDim}, DType::f32), joined({2, 2, kHeads, kDim}, DType::f32);
    for (int64_t i = 0; i < mine.view().count(); ++i) {
      const int64_t row = i / (2 * kHeads * kDim), at = i % (kHeads * kDim);
      const bool of_v = i / (kHeads * kDim) % 2 == 1;
      joined.as<float>()[i] = 0;
      mine.as<float>()[i] = of_v ? own.as<float>()[row * kHeads * kDim + at] + by : 0;
    }
    const Shard both{.axis = 2, .offset = 0, .extent = kHeads};
    pass_.tensors.push_back({&point("attn.kv"), kLayer, rows_, {}, joined});
    pass_.copies = {{1, {&point("attn.kv"), kLayer, rows_, both, mine}}};
    return copies_.judge(pass_, oracle_.get());
  }

  std::vector<Row> rows_ = {{0, 0}, {0, 1}};
  std::unique_ptr<Oracle> oracle_ =
      open_reference().oracle(checkpoint(), {.dtype = DType::f32, .threads = 1});
  OwnCopies copies_{checkpoint().config(), 3};
  JoinedPass pass_;
};

float next(float x) { return std::nextafter(x, 1e9f); }
float spoilt(float x) { return x * 1.01f; }

TEST_F(OwnCopiesTest, OneRoundingApartIsRight) {
  EXPECT_TRUE(judged(next).empty());
  EXPECT_TRUE(judged(next, /*by_oracle=*/false).empty());
}

TEST_F(OwnCopiesTest, AWrongOneIsNamedWithItsRank) {
  for (const bool by_oracle : {true, false}) {
    const std::vector<Apart> wrong = judged(spoilt, by_oracle);
    ASSERT_EQ(wrong.size(), 1) << by_oracle;
    EXPECT_EQ(wrong[0].rank, 1);
    EXPECT_GT(wrong[0].finding.budgets, 10);
    EXPECT_NE(wrong[0].finding.rule.find("rank 1: its own copy of head"), std::string::npos)
        << wrong[0].finding.rule;
  }
}

TEST_F(OwnCopiesTest, ACacheHoldsWhatItsRankWrote) {
  ASSERT_TRUE(judged(next).empty());
  EXPECT_TRUE(judged_cache(0).empty());
}

TEST_F(OwnCopiesTest, ACacheOfSomethingElseIsFound) {
  ASSERT_TRUE(judged(next).empty());
  const std::vector<Apart> wrong = judged_cache(0.5f);
  ASSERT_EQ(wrong.size(), 1);
  EXPECT_NE(wrong[0].finding.rule.find("its own V of head 0"), std::string::npos)
      << wrong[0].finding.rule;
}

}  // namespace
}  // namespace lockstep
