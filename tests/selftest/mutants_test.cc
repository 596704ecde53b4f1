// A selftest that a wrong judge passes proves nothing: each mutant of src/stats/mutant.h must fail
// it.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/selftest/selftest_run.h"
#include "src/stats/mutant.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

class Mutants : public testing::Test {
 protected:
  void TearDown() override { set_mutant(Mutant::none); }

  std::vector<Control> controls() const {
    const std::vector<Request> requests = {
        {.prompt = some_tokens(19, checkpoint_.config().vocab), .max_new = 2}};
    return positive_controls(
        checkpoint_, open_reference(),
        {.dtype = DType::bf16, .page_size = 4, .pages = pages_for(requests, 4)}, requests);
  }

  const Checkpoint checkpoint_ = Checkpoint::open(data_path("tiny/qwen3-default"));
};

bool statistics_fail() { return !std::ranges::all_of(statistic_cases(), &StatisticCase::passed); }

TEST_F(Mutants, NoneOfThemPasses) {
  // The second only where the first, which is cheaper, does not fail.
  const auto fails = [this] {
    return statistics_fail() || !std::ranges::all_of(controls(), &Control::failed);
  };
  EXPECT_FALSE(fails()) << "the judge itself";
  for (size_t m = 1; m < kMutantNames.size(); ++m) {
    set_mutant(static_cast<Mutant>(m));
    EXPECT_TRUE(fails()) << kMutantNames[m];
  }
}

// Of these, sizes in ulp alone are enough.
TEST_F(Mutants, AreShownByTheSizesThatTheyCannotSee) {
  const SelftestPlan plan{.config = checkpoint_.config(), .prompts = {}, .quick = true};
  const SelftestPlan::Case seen = plan.detection_case(DType::bf16);
  const Detection::Plan sizes{.checkpoint = checkpoint_,
                              .reference = open_reference(),
                              .engine = seen.engine,
                              .requests = seen.requests,
                              .layers = plan.fault_layers(),
                              .points = {&point("attn.k")}};
  const auto passes = [&] {
    return std::ranges::all_of(detection(sizes).limits, &Detection::Limit::passed);
  };
  EXPECT_TRUE(passes());
  for (const Mutant mutant : {Mutant::wide_budgets, Mutant::exact_one_ulp_off,
                              Mutant::names_next_op, Mutant::first_layer_only}) {
    set_mutant(mutant);
    EXPECT_FALSE(passes()) << kMutantNames[static_cast<size_t>(mutant)];
  }
}

TEST_F(Mutants, OfNoKindLeavesEffectsAtEveryPointSeen) {
  const SelftestPlan plan{.config = checkpoint_.config(), .prompts = {}, .quick = true};
  const SelftestPlan::Case seen = plan.detection_case(DType::bf16);
  for (const Detection::Limit& limit :
       detection({.checkpoint = checkpoint_,
       .reference = open_reference(),
       .engine = seen.engine,
       .requests = seen.requests,
       .layers = {0},
       .points = detectable_points(graph_of(checkpoint_.config()), false)})
           .limits)
    EXPECT_TRUE(limit.passed()) << limit.point->name << ": " << limit.statistic;
}

// Each statistic is needed by a made-up kernel that nothing else sees.
TEST_F(Mutants, WithoutAStatisticMissWhatItAloneSees) {
  constexpr Mutant kWithout[] = {Mutant::no_t1, Mutant::no_t2, Mutant::no_t3, Mutant::no_t4,
                                 Mutant::no_t5};
  constexpr const char* kNames[] = {"T1", "T2", "T3", "T4", "T5"};
  for (size_t i = 0; i < std::size(kWithout); ++i) {
    const std::string name = kNames[i];
    set_mutant(kWithout[i]);
    for (const StatisticCase& c : statistic_cases())
      EXPECT_EQ(c.found, c.wanted.starts_with(name) ? "clean" : c.wanted) << name << ": " << c.name;
  }
}

}  // namespace
}  // namespace lockstep
