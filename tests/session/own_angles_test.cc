// Kernels that make their own angles are right, although they do not read the tables of the engine,
// and their angles are other ones than in the tables by the roundings of fp32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <tuple>

#include "src/faults/seeds.h"
#include "src/judge/ledger.h"
#include "src/judge/verdict.h"
#include "src/session/store.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

// Position times base^(-2j / dim), with cosine and sine, all in T.
template <typename T>
void turn(T base, const TensorView& out, const TensorView& x, const TensorView& positions) {
  const int64_t heads = x.shape[1], dim = x.shape[2];
  const Tensor result(out.shape, out.dtype);  // out may be x
  for (int64_t t = 0; t < x.rows(); ++t)
    for (int64_t j = 0; j < dim / 2; ++j) {
      const T frequency = 1 / std::pow(base, static_cast<T>(2 * j) / static_cast<T>(dim));
      const T angle = static_cast<T>(value_at(positions, t)) * frequency;
      const auto c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = (t * heads + h) * dim + j;
        const auto x1 = static_cast<float>(value_at(x, at)),
                   x2 = static_cast<float>(value_at(x, at + dim / 2));
        store(result, at, x1 * c - x2 * s);
        store(result, at + dim / 2, x2 * c + x1 * s);
      }
    }
  std::memcpy(out.as<char>(), result.as<char>(), static_cast<size_t>(out.bytes()));
}

enum class Angles { fp64, fp32, base_off };
constexpr const char* kNames[] = {"fp64", "fp32", "base_off"};

class OwnAngles : public testing::TestWithParam<std::tuple<Angles, DType>> {
 protected:
  const Checkpoint checkpoint_ = Checkpoint::open(data_path("bard-qwen3"));

  Ops ops() const {
    Ops ops = cpu_ops();
    const double base = checkpoint_.config().rope.theta;
    ops.rope = [base](const OpContext&, TensorView out, TensorView x, TensorView, TensorView,
                      TensorView positions) {
      const auto angles = std::get<Angles>(GetParam());
      if (angles == Angles::fp32)
        turn<float>(static_cast<float>(base), out, x, positions);
      else
        turn<double>(angles == Angles::fp64 ? base : base * 1.001, out, x, positions);
    };
    return ops;
  }
};

TEST_P(OwnAngles, AreRightWhereTheirBaseIs) {
  const auto& [angles, dtype] = GetParam();
  JudgedRun run{.checkpoint = checkpoint_,
                .reference = open_reference(),
                .engine = {.dtype = dtype, .page_order_seed = 3},
                .ops = ops(),
                .judge = {.selection = {"attn.q_rope,attn.k_rope", "0,5", "", ""}},
                .causes = false};
  for (const int64_t tokens : {500, 37, 1})
    run.requests.push_back(
        {.prompt = some_tokens(tokens, checkpoint_.config().vocab), .max_new = 2});
  const Result result = judged(run);
  if (angles == Angles::base_off) {
    ASSERT_TRUE(result.first) << result.story;
    EXPECT_EQ(text_of(result.first->node.place), "layer 0 attn.q_rope") << result.story;
  } else {
    EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  }
}

// Cosines of the position before, in the rows that the engine shows: RoPE reads its tables, not
// these.
Ops with_wrong_rows_shown() {
  Ops ops = cpu_ops();
  wrap(ops.gather_rows, [](const auto& right, const OpContext& context, const TensorView& out,
                           const TensorView& index, const TensorView& table) {
    const Tensor other(index.shape, DType::i32);
    for (int64_t i = 0; i < index.count(); ++i)
      other.as<int32_t>()[i] = std::max(0, index.as<const int32_t>()[i] - 1);
    right(context, out, context.point.starts_with("rope.") ? other.view() : index, table);
  });
  return ops;
}

TEST(Angles, ThatAreShownWrongAloneMakeNoOtherOpWrong) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  JudgedRun run{.checkpoint = checkpoint,
                .reference = open_reference(),
                .ops = with_wrong_rows_shown(),
                .requests = {{.prompt = some_tokens(9, checkpoint.config().vocab), .max_new = 3},
                             {.prompt = some_tokens(4, checkpoint.config().vocab), .max_new = 2}}};
  const auto wrong_in = [](const JudgedRun& judged_run) {
    std::set<std::string> names;
    for (const Finding& finding : judged(judged_run).findings)
      names.emplace(finding.node.place.point->name);
    return names;
  };
  EXPECT_EQ(wrong_in(run), (std::set<std::string>{"rope.cos", "rope.sin"}));
  // One that turns by a wrong table is right of what it was given; one that is off by itself is
  // not.
  wrap(run.ops->rope,
       [](const auto& right, const OpContext& context, const TensorView& out, const TensorView& x,
          const TensorView& cos, const TensorView& sin, const TensorView& positions) {
         const Tensor before(positions.shape, DType::i32);
         for (int64_t i = 0; i < positions.count(); ++i)
           before.as<int32_t>()[i] = std::max(0, positions.as<const int32_t>()[i] - 1);
         right(context, out, x, cos, sin, before);
         if (context.layer == 2 && context.point == "attn.q_rope") put(out, 0, get(out, 0) + 1);
       });
  EXPECT_EQ(wrong_in(run), (std::set<std::string>{"rope.cos", "rope.sin", "attn.q_rope"}));
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, OwnAngles,
    testing::Combine(testing::Values(Angles::fp64, Angles::fp32, Angles::base_off),
                     testing::Values(DType::bf16, DType::f32)),
    [](const auto& info) {
      return std::string(kNames[static_cast<size_t>(std::get<0>(info.param))]) + "_" +
             std::string(name_of(std::get<1>(info.param)));
    });

}  // namespace
}  // namespace lockstep
