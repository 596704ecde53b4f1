// The time that looking for causes takes, beside that of the judged run itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <memory>
#include <type_traits>
#include <utility>

#include "kernels/ops.h"
#include "src/faults/seeds.h"
#include "tests/causes/other_hypotheses.h"
#include "tests/judged.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

// Numbers that no hypothesis has: those of the op, each times its own factor of 0.5 to 1.5.
void scatter(const TensorView& out) {
  for (int64_t i = 0; i < out.count(); ++i) {
    const double size = std::fabs(std::sin(static_cast<double>(i) * 12.9898)) * 43758;
    put(out, i, get(out, i) * static_cast<float>(0.5 + std::fmod(size, 1)));
  }
}

// Ops that are wrong at a point, in all layers, as nothing explains it.
Ops scattered(std::string_view point) {
  Ops ops = cpu_ops();
  for_each_op([&](const auto& row) {
    wrap(ops.*row.entry,
         [=](const auto& right, const OpContext& context, const auto& out, const auto&... inputs) {
           right(context, out, inputs...);
           if constexpr (std::is_same_v<decltype(out), const TensorView&>)
             if (context.point == point) scatter(out);
         });
  });
  return ops;
}

// Of all threads, so that what else the machine does is not counted.
double processor_seconds(const JudgedRun& run, Result* result) {
  const std::clock_t begin = std::clock();
  *result = judged(run);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

// Seconds of a run, and those that looking for causes adds to it; and what came of that.
struct Cost {
  double run = 0, causes = 0;
  std::string place;
  bool said = false;
};

// A prompt of 100 tokens makes a pass of 100 rows, which is what searches are dear in; 16 more
// tokens are passes of one row each, in which what was found is held against what is wrong.
void put_requests(JudgedRun& run) {
  run.engine.dtype = DType::bf16;
  run.engine.threads = 1;
  run.judge.threads = 1;
  run.requests = {{.prompt = some_tokens(100, run.checkpoint.config().vocab), .max_new = 16}};
}

// A processor that is shared takes longer for the same, now and then by half: the least of some
// measurements is what it takes.
Cost cost_of(JudgedRun run) {
  put_requests(run);
  Cost least;
  for (int i = 0; i < 6; ++i) {
    Cost cost;
    Result result;
    run.causes = false;
    cost.run = processor_seconds(run, &result);
    run.causes = true;
    cost.causes = processor_seconds(run, &result) - cost.run;
    if (result.first) cost.place = result.first->node.place.point->name;
    for (const PlaceSummary& place : result.places) cost.said |= !place.looks_like.empty();
    if (i == 0 || cost.causes / cost.run < least.causes / least.run) least = cost;
    if (least.causes < 2 * least.run) break;
  }
  return least;
}

// Counts the ops that it is asked about.
class Counting final : public Hypotheses {
 public:
  Counting(std::unique_ptr<Hypotheses> right, int64_t& asked)
      : right_(std::move(right)), asked_(asked) {}
  std::unique_ptr<OpHypotheses> of(const OpInPass& op) override {
    ++asked_;
    return right_->of(op);
  }

 private:
  std::unique_ptr<Hypotheses> right_;
  int64_t& asked_;
};

// Causes that are found end the search, but are held against all later passes of each layer. The
// dearest kinds of op: a product and an attention.
TEST(Causes, TakeLessThanTwiceTheTimeOfTheRunThatTheyAreOf) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  for (const char* fault : {"weight-layout-transposed@layer=2", "gqa-map-modulo"}) {
    JudgedRun run{.checkpoint = checkpoint, .reference = open_reference()};
    run.faults = {parse_fault(fault)};
    const Cost cost = cost_of(run);
    fmt::print("{:34} {:14} run {:.2f} s, causes {:.2f} s: {:.2f} x\n", fault, cost.place, cost.run,
               cost.causes, cost.causes / cost.run);
    EXPECT_TRUE(cost.said) << fault;
    EXPECT_LT(cost.causes, 2 * cost.run) << fault;
  }
}

// The dearest case is a result that is like nothing: every hypothesis is tried in vain, in every
// layer.
TEST(Causes, TakeNoLongerWhereNoneExplainsIt) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  // An attention and a product, as above; the others where all is run.
  const std::vector<const char*> some = {"attn.out", "mlp.gate"};
  for (const char* point :
       whole() ? std::vector{"attn.q_rope", "attn.out", "mlp.gate", "logits"} : some) {
    JudgedRun run{.checkpoint = checkpoint, .reference = open_reference()};
    run.ops = scattered(point);
    const Cost cost = cost_of(run);
    fmt::print("{:34} {:14} run {:.2f} s, causes {:.2f} s: {:.2f} x\n", "unlike anything",
               cost.place, cost.run, cost.causes, cost.causes / cost.run);
    EXPECT_EQ(cost.place, point);
    EXPECT_FALSE(cost.said) << point;
    EXPECT_LT(cost.causes, 2 * cost.run) << point;
  }
}

TEST(Causes, AreNotAskedForWhenNothingIsWrong) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  int64_t asked = 0;
  OtherHypotheses reference([&](std::unique_ptr<Hypotheses> right) {
    return std::make_unique<Counting>(std::move(right), asked);
  });
  JudgedRun run{.checkpoint = checkpoint,
                .reference = reference,
                .requests = {{.prompt = some_tokens(9, checkpoint.config().vocab), .max_new = 3}}};
  EXPECT_EQ(judged(run).verdict, RunVerdict::clean);
  EXPECT_EQ(asked, 0);
  run.faults = {parse_fault("rope-interleaved")};
  EXPECT_EQ(judged(run).verdict, RunVerdict::diverged);
  EXPECT_GT(asked, 0) << "the counter counts";
}

}  // namespace
}  // namespace lockstep
