// Guesses where they do not belong: of ops with other heads, outputs and rows, as layers, passes
// and siblings hand them on. None may end the judgement, or be taken for numbers of this op.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/ops.h"
#include "src/faults/seeds.h"
#include "tests/causes/other_hypotheses.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

// Numbers of other extents: heads, rows, widths.
constexpr double kForeign[] = {3, 7, 100, 4999};

// Tries each guess about an op on the others of its kind, and each with foreign numbers.
class Exchanged final : public Hypotheses {
 public:
  explicit Exchanged(std::unique_ptr<Hypotheses> whole) : whole_(std::move(whole)) {}

  std::unique_ptr<OpHypotheses> of(const OpInPass& op) override {
    auto asked = whole_->of(op);
    if (!seen_.insert(op.call.place.point->name).second) return asked;
    std::vector<Guess>& guesses = of_kind_[op.call.place.point->op];
    std::set<int> with_value;
    for (const Guess& guess : asked->guesses()) {
      guesses.push_back(guess);
      said.insert(asked->says(guess));
      if (guess.value != 0 && with_value.insert(guess.number).second)
        for (const double foreign : kForeign) guesses.push_back({guess.number, foreign});
    }
    for (const Guess& guess : guesses) {
      SCOPED_TRACE(testing::Message() << op.call.place.point->name << ": " << asked->says(guess));
      EXPECT_NO_THROW({
        const Numbers numbers = asked->evaluate(guess);
        EXPECT_TRUE(numbers.empty() || std::ssize(numbers) == op.got.count());
        hold_few(op, numbers, asked->evaluate_few(guess));
      });
    }
    tried += guesses.size();
    return asked;
  }

  static inline size_t tried = 0;
  static inline std::map<OpKind, size_t> held_few;  // guesses of which few rows were evaluated
  static inline std::set<std::string> said;

 private:
  // What rules a guess out by few rows is what it says of them among all.
  static void hold_few(const OpInPass& op, const Numbers& all, const Numbers& few) {
    if (few.empty() || all.empty()) return;
    const auto width = static_cast<size_t>(op.got.row_size());
    ASSERT_EQ(few.size(), op.few.size() * width);
    for (size_t i = 0; i < few.size(); ++i) {
      const double want = all[op.few[i / width] * width + i % width];
      if (std::isnan(want) || std::isinf(want))
        ASSERT_TRUE(std::isnan(want) ? std::isnan(few[i]) : few[i] == want) << i;
      else
        ASSERT_NEAR(few[i], want, 1e-9 * (1 + std::fabs(want))) << i;
    }
    ++held_few[op.call.place.point->op];
  }

  std::unique_ptr<Hypotheses> whole_;
  std::set<std::string_view> seen_;
  std::map<OpKind, std::vector<Guess>> of_kind_;
};

// Asks of ops whose neighbours in the pass cannot be had.
class Failing final : public Hypotheses {
 public:
  Failing(std::unique_ptr<Hypotheses> whole, std::function<void()> fail)
      : whole_(std::move(whole)), fail_(std::move(fail)) {}

  std::unique_ptr<OpHypotheses> of(const OpInPass& op) override {
    OpInPass& failing = ops_.emplace_back(op);
    failing.other = [this](const Place&) {
      fail_();
      return TensorView{};
    };
    return whole_->of(failing);
  }
  std::string trouble() const override { return whole_->trouble(); }

 private:
  std::unique_ptr<Hypotheses> whole_;
  std::function<void()> fail_;
  std::deque<OpInPass> ops_;
};

// Takes its time for the first guess about an op.
class Slow final : public Hypotheses {
 public:
  explicit Slow(std::unique_ptr<Hypotheses> whole) : whole_(std::move(whole)) {}

  std::unique_ptr<OpHypotheses> of(const OpInPass& op) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    return whole_->of(op);
  }

 private:
  std::unique_ptr<Hypotheses> whole_;
};

// Every op that computes is wrong, so that all are asked about.
Ops spoilt() {
  Ops ops = cpu_ops();
  for_each_op([&](const auto& row) {
    wrap(ops.*row.entry,
         [=](const auto& right, const OpContext& context, const auto& out, const auto&... inputs) {
           right(context, out, inputs...);
           if constexpr (std::is_same_v<decltype(out), const TensorView&>)
             for (int64_t i = 0; out.dtype != DType::i32 && i < out.count(); ++i)
               put(out, i, get(out, i) * (i % 3 == 0 ? 0.6f : 1.3f));
         });
  });
  return ops;
}

TEST(Guesses, OfOtherExtentsSayNothingAndEndNothing) {
  OtherHypotheses library([](std::unique_ptr<Hypotheses> right) {
    return std::make_unique<Exchanged>(std::move(right));
  });
  // The second model has a window shorter than the prompt.
  for (const char* model : {"tiny/qwen3-moe", "tiny/qwen2-sliding"}) {
    const Checkpoint checkpoint = Checkpoint::open(data_path(model));
    JudgedRun run{.checkpoint = checkpoint, .reference = library};
    run.ops = spoilt();
    run.causes = true;
    run.requests = {{.prompt = some_tokens(19, checkpoint.config().vocab), .max_new = 3},
                    {.prompt = some_tokens(5, checkpoint.config().vocab), .max_new = 2}};
    const Result result = judged(run);
    EXPECT_TRUE(result.first);
    EXPECT_GT(std::exchange(Exchanged::tried, 0), 1000);
    EXPECT_GT(std::exchange(Exchanged::held_few[OpKind::linear], 0), 50);
    EXPECT_GT(std::exchange(Exchanged::held_few[OpKind::attention], 0), 50);
  }
  // Of two requests neither stands before the other.
  for (const char* what : {"the keys and values of", "the context length of"}) {
    EXPECT_TRUE(Exchanged::said.contains(fmt::format("{} the other request in the pass", what)));
    EXPECT_FALSE(Exchanged::said.contains(fmt::format("{} the request +1 in the pass", what)));
    EXPECT_FALSE(Exchanged::said.contains(fmt::format("{} the request -1 in the pass", what)));
  }
}

// A search may take a minute, of a region more: the line says what is waited for.
TEST(Guesses, AreToldWhileTheyAreTried) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  OtherHypotheses library(
      [](std::unique_ptr<Hypotheses> right) { return std::make_unique<Slow>(std::move(right)); });
  for (const char* points : {"attn.norm", "attn.o"}) {
    JudgedRun run{.checkpoint = checkpoint, .reference = library};
    run.ops = spoilt();
    run.causes = true;
    run.judge.selection = Selection(points, "0", "", "");
    // The second is a region then.
    run.judge.recorded = [](const Place& place) { return *place.point != point("attn.out"); };
    run.requests = {{.prompt = some_tokens(5, checkpoint.config().vocab), .max_new = 1}};
    std::vector<std::string> lines;
    run.progress = [&](const std::string& line) { lines.push_back(line); };
    EXPECT_TRUE(judged(run).first);
    const std::string says = fmt::format("looking for what {} looks like in layer 0 of ", points);
    EXPECT_TRUE(std::ranges::any_of(lines, [&](const std::string& line) {
      return line.find(says) != std::string::npos;
    })) << points;
  }
}

// A guess that does not fit an op says nothing of it. One that ends otherwise is missed, and said.
std::vector<std::string> notes_where(std::function<void()> fail) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  OtherHypotheses library([&](std::unique_ptr<Hypotheses> right) {
    return std::make_unique<Failing>(std::move(right), fail);
  });
  JudgedRun run{.checkpoint = checkpoint, .reference = library};
  run.ops = spoilt();
  run.causes = true;
  run.requests = {{.prompt = some_tokens(9, checkpoint.config().vocab), .max_new = 1}};
  const Result result = judged(run);
  EXPECT_TRUE(result.first);
  return result.notes;
}
TEST(Guesses, ThatEndForWantOfMemoryAreCounted) {
  const auto lack = notes_where([] { throw std::bad_alloc(); });
  const auto told = [](const std::string& note) {
    return note.find("guesses failed, the first: there is no memory left") != note.npos;
  };
  EXPECT_EQ(std::ranges::count_if(lack, told), 1) << testing::PrintToString(lack);
  const auto misfit = notes_where([] { fail("extents that do not fit"); });
  EXPECT_EQ(std::ranges::count_if(
                misfit, [](const auto& note) { return note.find("guesses failed") != note.npos; }),
            0)
      << testing::PrintToString(misfit);
}

// Attention whose products are all right, and whose exp is off by about as much as weights are that
// are rounded to fp16. What it is declared to round to, it does not.
Ops of_a_short_polynomial() {
  Ops ops = cpu_ops();
  wrap(ops.paged_attention, [](const auto& right, const OpContext& context, const TensorView& out,
                               const auto&... inputs) {
    right(context, out, inputs...);
    const int64_t head = out.shape.last();
    for (int64_t i = 0; i < out.count(); ++i)
      put(out, i, get(out, i) * (1 + 4e-4f * static_cast<float>((i / head * 7 + i) % 5 - 2)));
  });
  return ops;
}

// Products without their last 8 inputs, stored before the bias is added.
Ops without_the_last_inputs() {
  Ops ops = cpu_ops();
  wrap(ops.matmul, [](const auto& right, const OpContext& context, const TensorView& out,
                      const TensorView& x, const WeightView& weight, const TensorView& bias) {
    if (bias.empty()) return right(context, out, x, weight, bias);
    Tensor some(x.shape, x.dtype);
    for (int64_t i = 0; i < x.count(); ++i)
      put(some, i, i % x.shape.last() < x.shape.last() - 8 ? get(x, i) : 0);
    right(context, out, some, weight, TensorView{});
    for (int64_t i = 0; i < out.count(); ++i)
      put(out, i, get(out, i) + get(bias, i % bias.count()));
  });
  return ops;
}

// What they leave out is seen beside the op as it was declared to round, which is not once.
TEST(Guesses, AboutAProductRoundBeforeTheBiasWhereThatIsDeclared) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen2.5"));
  JudgedRun run{.checkpoint = checkpoint, .reference = open_reference()};
  run.ops = without_the_last_inputs();
  run.causes = true;
  for (const char* point : {"attn.q", "attn.k", "attn.v"})
    run.judge.rounding.push_back(rounding_from(std::string(point) + "=bias_after_store"));
  run.judge.selection = Selection("attn.q", "2", "", "");
  run.requests = {{.prompt = some_tokens(19, checkpoint.config().vocab), .max_new = 2}};
  const Result result = judged(run);
  ASSERT_EQ(result.verdict, RunVerdict::diverged) << result.story;
  const Place q{&point("attn.q"), 2};
  const auto at = std::ranges::find(result.places, q, &PlaceSummary::place);
  ASSERT_NE(at, result.places.end());
  ASSERT_FALSE(at->looks_like.empty());
  EXPECT_EQ(at->looks_like[0].says, "its last 8 inputs left out of the sum");
}

// A mask of which all keys are seen is no bug there: it comes as near as the op that rounds once,
// which is nearer than the one that rounds as was declared.
TEST(Guesses, ThatChangeNothingOfAnOpThatRoundsOnceAreNoBugs) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  JudgedRun run{.checkpoint = checkpoint, .reference = open_reference()};
  run.engine.dtype = DType::f32;
  run.ops = of_a_short_polynomial();
  run.causes = true;
  run.judge.rounding = {rounding_from("attn.out=flash_fp16")};
  run.judge.selection = Selection("attn.out", "0-2", "", "");
  run.requests = {{.prompt = some_tokens(19, checkpoint.config().vocab), .max_new = 3}};
  const Result result = judged(run);
  ASSERT_EQ(result.verdict, RunVerdict::diverged) << result.story;
  for (const PlaceSummary& place : result.places)
    for (const Finding::LooksLike& cause : place.looks_like)
      ADD_FAILURE() << "layer " << place.place.layer << " looks like: " << cause.says;
}

}  // namespace
}  // namespace lockstep
