#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "tests/judged.h"
#include "tools/selftest_report.h"

namespace lockstep {
namespace {

// Values of R's binom.test.
TEST(ClopperPearson, BoundsAShare) {
  EXPECT_NEAR(clopper_pearson_upper(0, 300), 0.0122, 1e-4);
  EXPECT_NEAR(clopper_pearson_lower(10, 10), 0.6915, 1e-4);
  EXPECT_NEAR(clopper_pearson_lower(8, 10), 0.4439, 1e-4);
  EXPECT_NEAR(clopper_pearson_upper(8, 10), 0.9748, 1e-4);
  EXPECT_EQ(clopper_pearson_lower(0, 10), 0);
  EXPECT_EQ(clopper_pearson_upper(10, 10), 1);
  EXPECT_EQ(clopper_pearson_lower(0, 0), 0);
  EXPECT_EQ(clopper_pearson_upper(0, 0), 1);
}

SelftestOutcome clean_run() { return {.name = "clean", .verdict = "clean"}; }

SelftestOutcome fault_run(std::optional<double> effect, bool detected) {
  SelftestOutcome outcome{.name = "a fault", .verdict = detected ? "diverged" : "clean"};
  outcome.seeded = {"wrong-page@0"};
  if (detected) outcome.found = outcome.seeded;
  outcome.first_exact = detected;
  outcome.effect = effect;
  return outcome;
}

Selftest good_test() {
  Selftest test{.clean = {clean_run()}, .controls = {{"limits times 0", "diverged", true}}};
  test.faults = {fault_run({}, true), fault_run(3, true), fault_run(1, true), fault_run(0.1, false),
                 fault_run(0, false)};
  test.several = {fault_run({}, true)};
  return test;
}

TEST(Passed, NeedsEverything) {
  EXPECT_TRUE(passed(good_test()));
  Selftest test = good_test();
  test.clean[0].verdict = "diverged";
  EXPECT_FALSE(passed(test)) << "a false alarm";
  test = good_test();
  test.clean[0].verdict = "inconclusive";
  EXPECT_FALSE(passed(test)) << "a clean run that was not judged";
  test = good_test();
  test.clean.clear();
  EXPECT_FALSE(passed(test)) << "nothing was run";
  test = good_test();
  test.controls[0].failed = false;
  EXPECT_FALSE(passed(test)) << "a control that passes";
  test = good_test();
  test.controls.clear();
  EXPECT_FALSE(passed(test)) << "no control";
  for (size_t missed : {0, 1, 2}) {
    test = good_test();
    test.faults[missed] = fault_run(test.faults[missed].effect, false);
    EXPECT_FALSE(passed(test)) << "a fault that is missed: " << missed;
  }
  test = good_test();
  test.faults[1].first_exact = false;
  EXPECT_FALSE(passed(test)) << "another op is named";
  test = good_test();
  test.several[0].found.clear();
  EXPECT_FALSE(passed(test)) << "one of several is not named";
}

TEST(Passed, AFaultThatChangesNothingIsListedAndNotCounted) {
  const Selftest test = good_test();
  EXPECT_EQ(power_of(test)[4].runs, 1);
  EXPECT_NE(text_of(std::vector{test}).find("wrong-page@0: it changed nothing; it needs"),
            std::string::npos);
}

TEST(Cases, HaveNamesOfTheirOwnAndFitTheirPages) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  for (bool quick : {false, true}) {
    const SelftestPlan plan{.config = checkpoint.config(), .prompts = {}, .quick = quick};
    std::vector<SelftestCase> cases = clean_cases(plan, DType::bf16);
    EXPECT_GE(cases.size(), quick ? 10u : 300u);
    for (SelftestCase& c : fault_cases(plan, DType::bf16)) cases.push_back(std::move(c));
    std::set<std::string> names;
    for (const SelftestCase& c : cases) {
      EXPECT_TRUE(names.insert(c.name).second) << c.name;
      Engine engine(checkpoint, cpu_ops(), c.engine);
      for (const Request& request : c.requests) engine.submit(request);  // throws if it cannot fit
    }
    std::set<std::string> seeded;
    for (const SelftestCase& c : cases)
      if (!c.faults.empty()) seeded.insert(c.faults[0].name);
    for (const Fault& fault : faults())
      EXPECT_EQ(seeded.contains(std::string(fault.name)), fault.applies(checkpoint.config()))
          << fault.name;
  }
}

SelftestRun quick_run(const Checkpoint& checkpoint) {
  return {.checkpoint = checkpoint,
          .reference = open_reference(),
          .plan = {.config = checkpoint.config(), .prompts = {}, .quick = true},
          .dtypes = {DType::bf16}};
}

TEST(Selftest, PassesOnATinyModelAndGoesOnFromItsJournal) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  SelftestRun run = quick_run(checkpoint);
  run.journal = temp_path("selftest.jsonl");
  std::filesystem::remove(run.journal);
  const std::vector<Selftest> first = selftest(run);
  EXPECT_TRUE(passed(first.at(0))) << text_of(first);
  // Every bug has an occasion but those that need a pool of more than 2^31 elements, or a position
  // of 2^8: in two layers each.
  EXPECT_EQ(power_of(first.at(0))[4].runs, 4) << text_of(first);
  {
    std::ofstream cut(run.journal, std::ios::app);
    cut << R"({"name": "clean bf16 0", "verd)";  // as of a writer that was killed
  }
  const auto lines = [&] {
    std::ifstream in(run.journal);
    return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
  };
  const auto before = lines();
  EXPECT_EQ(json_of(selftest(run)), json_of(first));
  EXPECT_EQ(lines(), before) << "nothing was run again";

  const Checkpoint other = Checkpoint::open(data_path("tiny/qwen2-default"));
  SelftestRun wrong = quick_run(other);
  wrong.journal = run.journal;
  EXPECT_NE(error_of([&] { selftest(wrong); }).find("is no journal of a selftest of this model"),
            std::string::npos);
  std::filesystem::remove(run.journal);
}

}  // namespace
}  // namespace lockstep
