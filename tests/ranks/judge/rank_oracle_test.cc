// The exact result of what ranks add is the whole op's, cut in parts: they add up to it.
#include "src/ranks/judge/rank_oracle.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/session/reference_library.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 3;

class RankOracleTest : public testing::Test {
 protected:
  static std::unique_ptr<Oracle> whole() {
    return open_reference().oracle(checkpoint(), {.dtype = DType::f32, .threads = 1});
  }
  static const Checkpoint& checkpoint() {
    static const Checkpoint open = Checkpoint::open(data_path("tiny/qwen3-bias-mqa"));
    return open;
  }
  OracleCall call(const char* point, std::vector<TensorView> inputs) const {
    return {.place = {find_point(point), std::string_view(point) == "embed" ? -1 : 1},
            .dtype = DType::f32,
            .inputs = std::move(inputs),
            .rows = rows_,
            .tokens = tokens_};
  }
  // Numbers of both signs, all of them others.
  static Tensor numbers(const Shape& shape) {
    Tensor made(shape, DType::f32);
    for (int64_t i = 0; i < shape.count(); ++i)
      made.as<float>()[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i + 1)));
    return made;
  }

  std::vector<Row> rows_ = {{0, 0}, {0, 1}, {0, 2}};
  std::vector<int32_t> tokens_ = {3, 319, 170};
  std::unique_ptr<Oracle> whole_ = whole();
  RankOracle ranks_{whole(), checkpoint().config(), 4};
};

TEST_F(RankOracleTest, ItsPartialSumsAddUpToTheWholeOp) {
  const Tensor heads = numbers({kRows, 4, 32}), act = numbers({kRows, 160});
  for (const auto& [partial, sum, input] :
       {std::tuple{"attn.o_partial", "attn.o", heads}, {"mlp.down_partial", "mlp.down", act}}) {
    const Exact parts = ranks_.evaluate(call(partial, {input}));
    const Exact want = whole_->evaluate(call(sum, {input}));
    ASSERT_EQ(parts.shape, Shape({kRows, 4, 64})) << partial;
    EXPECT_EQ(parts.terms * 4, want.terms) << partial;
    for (int64_t i = 0; i < kRows * 64; ++i) {
      double total = 0, magnitude = 0;
      for (int64_t rank = 0; rank < 4; ++rank) {
        const int64_t at = (i / 64 * 4 + rank) * 64 + i % 64;
        total += parts.want[at];
        magnitude += parts.magnitude[at];
      }
      EXPECT_NEAR(total, want.want[i], 1e-12) << partial << " " << i;
      EXPECT_NEAR(magnitude, want.magnitude[i], 1e-12) << partial << " " << i;
    }
  }
}

TEST_F(RankOracleTest, LooksEachTokenUpInOneRank) {
  const Exact parts = ranks_.evaluate([&] {
    OracleCall lookup = call("embed", {});
    lookup.place.point = &point("embed.partial");
    return lookup;
  }());
  const Exact want = whole_->evaluate(call("embed", {}));
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t rank = 0; rank < 4; ++rank)
      for (int64_t i = 0; i < 64; ++i)
        EXPECT_EQ(parts.want[(row * 4 + rank) * 64 + i],
                  tokens_[row] / 80 == rank ? want.want[row * 64 + i] : 0);
}

TEST_F(RankOracleTest, ASumIsOfThePartialSumsAsTheyAre) {
  const Tensor partial = numbers({kRows, 4, 64});
  const Exact sum = ranks_.evaluate(call("attn.o", {partial}));
  EXPECT_EQ(sum.shape, Shape({kRows, 64}));
  for (int64_t i = 0; i < kRows * 64; ++i) {
    double want = 0, size = 0;
    for (int64_t rank = 0; rank < 4; ++rank) {
      const double value = partial.as<float>()[(i / 64 * 4 + rank) * 64 + i % 64];
      want += value;
      size += std::fabs(value);
    }
    EXPECT_EQ(sum.want[i], want);
    EXPECT_EQ(sum.ties[i], ulp(size, DType::f32));  // two roundings before the last one
  }
  // Of two there is one addition, and the last rounding is its.
  RankOracle two(whole(), checkpoint().config(), 2);
  EXPECT_TRUE(two.evaluate(call("attn.o", {numbers({kRows, 2, 64})})).ties.empty());
}

TEST_F(RankOracleTest, APartIsJudgedByWhatItsOwnRankRead) {
  const Tensor first = numbers({kRows, 64});
  Tensor other = copy_on(Device::cpu, first);
  for (int64_t i = 0; i < other.view().count(); ++i) other.as<float>()[i] *= 2;
  JoinedPass pass;
  pass.tensors.push_back({&point("attn.norm"), 1, rows_, {}, first});
  pass.versions[{point("attn.norm").order(), 1}] = {first, first, other, first};
  const Exact alike = ranks_.evaluate(call("attn.q", {first}));
  ranks_.begin_pass(&pass);
  const Exact apart = ranks_.evaluate(call("attn.q", {first}));
  const Exact doubled = whole_->evaluate(call("attn.q", {other}));
  int64_t unlike = 0;
  for (int64_t i = 0; i < kRows * 4 * 32; ++i) {
    const int64_t head = i / 32 % 4;
    EXPECT_EQ(apart.want[i], (head == 2 ? doubled : alike).want[i]) << i;
    unlike += apart.want[i] != alike.want[i];
  }
  EXPECT_EQ(unlike, kRows * 32);
}

}  // namespace
}  // namespace lockstep
