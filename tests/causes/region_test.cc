// A cause in a hidden op is found however small a share of the distance it makes up, and a guess
// that is none is not.
#include "src/causes/region.h"

#include "tests/judge/judge_fixture.h"

namespace lockstep {
namespace {

const Place kHiddenOp{&point("mlp.down"), 1}, kRecorded{&point("mlp.residual"), 1};

// About one op: that it makes half as much again, or those numbers.
class Made final : public Hypotheses {
 public:
  explicit Made(const std::vector<double>& made) : made_(made) {}

  std::unique_ptr<OpHypotheses> of(const OpInPass& op) override {
    return std::make_unique<OfOp>(op, made_);
  }

 private:
  class OfOp final : public OpHypotheses {
   public:
    OfOp(const OpInPass& op, const std::vector<double>& made) : op_(op), made_(made) {}
    std::vector<Guess> guesses() override {
      if (op_.call.place != kHiddenOp) return {};
      return {{.number = 0}, {.number = 1}};
    }
    Numbers evaluate(const Guess& guess) override {
      if (guess.number == 1) return made_;
      std::vector<double> more(op_.right.begin(), op_.right.end());
      for (double& x : more) x *= 1.5;
      return more;
    }
    std::string says(const Guess& guess) const override {
      return guess.number == 0 ? "half as much again" : "those numbers";
    }

   private:
    const OpInPass& op_;
    const std::vector<double>& made_;
  };
  const std::vector<double>& made_;
};

using RegionTest = JudgeTest;

// What is added in one element of a row is little beside what rounding makes of the others: over
// half of the distance from what is right stays with the true cause.
TEST_F(RegionTest, NamesACauseThatIsSmallerThanTheRounding) {
  const FakeRun right = clean();
  const TensorView stream = right.passes[0].find(*kRecorded.point, kRecorded.layer)->data;
  for (const int64_t each : {1, 5}) {  // rows
    std::vector<double> made;          // before it is rounded
    FakeModel model(DType::bf16,
                    [&](const Place& place, const PassInfo& info, std::vector<double>& v) {
                      if (place != kHiddenOp || info.pass != 0) return;
                      for (int64_t row = 0; row < stream.rows(); row += each) {
                        const int64_t i = row * kHidden + row % kHidden;
                        v[static_cast<size_t>(i)] += 1.3 * ulp(value_at(stream, i), DType::bf16);
                      }
                      made = v;
                    });
    FakeRun run = fake_run(model, DType::bf16);
    Pass& pass = run.passes[0];
    std::erase_if(pass.tensors, [](const RecordedTensor& tensor) {
      return Place{tensor.point, tensor.layer} == kHiddenOp;
    });
    Judge judge(run.manifest, oracle_, nullptr, nullptr, {});
    judge.judge(pass);
    Made hypotheses(made);
    const auto region = RegionInPass::of(pass, kRecorded, {kHiddenOp}, {0, 1}, run.manifest, judge,
                                         oracle_, hypotheses);
    ASSERT_NE(region, nullptr);
    const std::vector<RegionInPass::Tried> tried = region->search([] {});
    ASSERT_EQ(tried.size(), 1u) << each;
    EXPECT_EQ(tried[0].says, "those numbers");
    EXPECT_EQ(tried[0].places, std::vector<Place>{kHiddenOp});
    EXPECT_GT(tried[0].fit.squares, 0.5 * tried[0].fit.right_squares) << "it is no small one";
  }
}

}  // namespace
}  // namespace lockstep
