#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "tests/judged.h"
#include "tools/judged_trace.h"
#include "tools/options.h"
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
  for (const TraceCheck& bad : {TraceCheck{"a trace", "diverged", "", 5, 5},
                                TraceCheck{"a trace", "inconclusive", "", 0, 5}}) {
    test = good_test();
    test.traces = {{"a trace", "inconclusive", "", 3, 5}};
    EXPECT_TRUE(passed(test)) << "a trace that holds a part, all of it right";
    test.traces.push_back(bad);
    EXPECT_FALSE(passed(test)) << "a right trace that is called wrong, or an empty one";
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
      EXPECT_EQ(seeded.contains(std::string(fault.name)),
                fault.applies(checkpoint.config()) && fault.seat == Seat::host)
          << fault.name;
  }
}

TEST(Curve, CountsWhatAMultiplierOnAllLimitsWouldFind) {
  Selftest test = good_test();
  test.clean[0].strain = 0.6;
  test.faults[1].strain = 3;
  test.faults[0].strain = std::numeric_limits<double>::infinity();
  for (const CurvePoint& point : curve_of(test)) {
    EXPECT_EQ(point.alarms, point.multiplier < 0.6 ? 1 : 0) << point.multiplier;
    EXPECT_EQ(point.detected[0], 1) << "no multiplier hides what no limit decides";
    EXPECT_EQ(point.detected[1], point.multiplier < 3 ? 1 : 0) << point.multiplier;
    EXPECT_EQ(point.detected[2], 0);
  }
  test.clean[0].strain = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(curve_of(test).back().alarms, 1) << "what is no number passes nothing";
}

TEST(Rules, AreCountedOnTheSameRuns) {
  Selftest test = good_test();
  test.clean[0].others["three-way"] = {.alarmed = true};
  test.faults[1].others["three-way"] = {.alarmed = true, .first_exact = true};
  test.faults[2].others["three-way"] = {.alarmed = true};
  test.faults[4].others["three-way"] = {.alarmed = true};  // changes nothing: not counted
  const std::vector<RuleRow> rows = rules_of(test);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].name, "lockstep");
  EXPECT_EQ(rows[0].faults, 4);
  EXPECT_EQ(rows[0].exact, 3);
  EXPECT_EQ(rows[1].name, "three-way");
  EXPECT_EQ(rows[1].alarms, 1);
  EXPECT_EQ(rows[1].detected, 2);
  EXPECT_EQ(rows[1].exact, 1);
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
  for (const CurvePoint& point : curve_of(first.at(0))) {
    if (point.multiplier != 1) continue;
    EXPECT_EQ(point.alarms, 0);
    for (size_t row = 0; row < 5; ++row)
      EXPECT_EQ(point.detected[row], power_of(first.at(0))[row].detected);
  }
  const std::vector<RuleRow> rules = rules_of(first.at(0));
  ASSERT_EQ(rules.size(), 3u) << text_of(first);
  for (size_t other : {1, 2}) EXPECT_LT(rules[other].exact, rules[0].exact) << rules[other].name;
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

// Hugging Face's activations: right, and in bf16.
TEST(Selftest, TakesARightTraceAndCallsAWrongOneAnAlarm) {
  const std::string path = temp_path("golden.h5");
  std::filesystem::remove(path);
  const std::string write = LOCKSTEP_BINARY_DIR "/write_golden_trace bard-qwen3 " + path;
  ASSERT_EQ(std::system(write.c_str()), 0);
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const std::vector<TraceCheck> checks = check_trace(path, checkpoint, {});
  ASSERT_EQ(checks.size(), 2u);
  for (const TraceCheck& trace : checks) {
    EXPECT_FALSE(trace.alarmed()) << trace.name << ": " << trace.story;
    EXPECT_GE(trace.judged, 48) << trace.name;
    EXPECT_LT(trace.judged, trace.expected) << "not every op is stored";
  }
  const Result fused = judge_trace(path, checkpoint, {.contracts = contracts_of("fused")});
  EXPECT_EQ(fused.verdict, "diverged") << "one rounding is not what it declares";
  EXPECT_NE(error_of([&] { dtypes_of_traces({path}, {DType::f32}); }).find("give --dtype bf16"),
            std::string::npos);
  EXPECT_EQ(dtypes_of_traces({path}, {DType::f32, DType::bf16}), std::vector{DType::bf16});
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lockstep
