#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/files/json.h"
#include "src/report/output.h"
#include "src/selftest/selftest_run.h"
#include "src/session/judged_trace.h"
#include "src/session/options.h"
#include "tests/judged.h"
#include "tests/places.h"
#include "tests/report/json_schema.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

Selftest::Outcome clean_run() { return {.name = "clean", .verdict = RunVerdict::clean}; }

Selftest::Outcome fault_run(std::optional<double> effect, bool detected) {
  Selftest::Outcome outcome{.name = "a fault",
                            .verdict = detected ? RunVerdict::diverged : RunVerdict::clean};
  outcome.seeded = {"wrong-page@0"};
  if (detected) outcome.found = outcome.seeded;
  outcome.first_exact = detected;
  outcome.effect = effect;
  return outcome;
}

// Enough runs of each kind for what their bounds must reach.
Selftest good_test() {
  Selftest test{.clean = {clean_run()},
                .controls = {{"limits times 0", RunVerdict::diverged, true}}};
  test.limits = {{.point = &point("attn.q"), .size = 1, .statistic = "T1", .stated = 2}};
  test.statistics = {{"all elements too large", "T5", "T5"}};
  for (int i = 0; i < 200; ++i)
    for (const std::optional<double> effect : {std::optional<double>(), {3.0}, {1.0}})
      test.faults.push_back(fault_run(effect, true));
  test.faults.push_back(fault_run(0.1, false));
  test.faults.push_back(fault_run(0, false));
  test.several.assign(100, fault_run({}, true));
  return test;
}

TEST(Passed, NeedsEverything) {
  EXPECT_TRUE(good_test().passed());
  Selftest test = good_test();
  test.clean[0].verdict = RunVerdict::diverged;
  EXPECT_FALSE(test.passed()) << "a false alarm";
  test = good_test();
  test.clean[0].verdict = RunVerdict::inconclusive;
  EXPECT_FALSE(test.passed()) << "a clean run that was not judged";
  test = good_test();
  test.clean.clear();
  EXPECT_FALSE(test.passed()) << "nothing was run";
  test = good_test();
  test.controls[0].failed = false;
  EXPECT_FALSE(test.passed()) << "a control that passes";
  test = good_test();
  test.controls.clear();
  EXPECT_FALSE(test.passed()) << "no control";
  test = good_test();
  test.limits[0].size = 4;
  EXPECT_FALSE(test.passed()) << "an effect that is not seen where it must be";
  test.limits[0].size = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(test.passed()) << "a size that is no number";
  test.limits.clear();
  EXPECT_FALSE(test.passed()) << "nothing was measured";
  test = good_test();
  test.statistics[0].found = "T1";
  EXPECT_FALSE(test.passed()) << "found by another statistic than the one that can see it";
  test.statistics.clear();
  EXPECT_FALSE(test.passed()) << "no statistic was tried";
  test = good_test();
  for (const TraceCheck& bad : {TraceCheck{"a trace", RunVerdict::diverged, "", 5, 5},
                                TraceCheck{"a trace", RunVerdict::inconclusive, "", 0, 5}}) {
    test = good_test();
    test.traces = {{"a trace", RunVerdict::inconclusive, "", 3, 5}};
    EXPECT_TRUE(test.passed()) << "a trace that holds a part, all of it right";
    test.traces.push_back(bad);
    EXPECT_FALSE(test.passed()) << "a right trace that is called wrong, or an empty one";
  }
}

TEST(SelftestJson, KeepsWhatIsNoNumber) {
  Selftest test = good_test();
  test.limits[0].size = std::numeric_limits<double>::quiet_NaN();
  test.clean[0].limit_ratio = -std::numeric_limits<double>::infinity();
  test.limits[0].stated = std::numeric_limits<double>::infinity();
  const Document document = document_of({test});
  const auto json = nlohmann::json::parse(document.json)[0];
  const auto number_at = [&](const char* at) {
    const std::string text = json.at(nlohmann::json::json_pointer(at)).dump();
    return JsonDocument(text, {at, ""}).root().real();
  };
  EXPECT_TRUE(std::isnan(number_at("/detection_limits/0/ulp")));
  EXPECT_EQ(number_at("/detection_limits/0/stated_ulp"), test.limits[0].stated);
  EXPECT_EQ(number_at("/clean/0/limit_ratio"), test.clean[0].limit_ratio);
  EXPECT_NE(text_of(document, "csv").find(",-Infinity\n"), std::string::npos);
  const Json rules = schema_of("selftest");
  EXPECT_EQ(violation(Json::parse(document.json), rules, rules), "");
}

// Of the shares it is the lower bound that counts: 199 of 200 are at least 97.2 %, 198 96.4 %.
TEST(Passed, HoldsTheBoundsOfSharesToNumbers) {
  const auto missing = [](size_t first, int missed, const auto& change) {
    Selftest test = good_test();
    for (int i = 0; i < missed; ++i) change(test.faults[first + 3 * static_cast<size_t>(i)]);
    return test.passed();
  };
  const auto miss = [](Selftest::Outcome& outcome) { outcome = fault_run(outcome.effect, false); };
  const auto name_other = [](Selftest::Outcome& outcome) { outcome.first_exact = false; };
  EXPECT_TRUE(missing(0, 11, miss)) << "189 of 200 are at least 90.4 %";
  EXPECT_FALSE(missing(0, 13, miss)) << "187 of 200 are at least 89.1 %";
  EXPECT_TRUE(missing(1, 1, miss));
  EXPECT_FALSE(missing(1, 2, miss)) << "of two limits or more 97 % are wanted";
  EXPECT_TRUE(missing(1, 3, name_other)) << "197 of 200 are at least 95.7 %";
  EXPECT_FALSE(missing(1, 4, name_other)) << "196 of 200 are at least 94.96 %";
  EXPECT_TRUE(missing(2, 28, miss)) << "172 of 200 are at least 80.4 %";
  EXPECT_FALSE(missing(2, 30, miss)) << "170 of 200 are at least 79.3 %";
  Selftest few = good_test();
  std::erase_if(few.faults, [n = 0](const Selftest::Outcome& o) mutable {
    return o.effect && *o.effect == 1.0 && ++n > 10;
  });
  EXPECT_FALSE(few.passed()) << "10 of 10 are at least 69 %";
  Selftest test = good_test();
  for (size_t i = 0; i < 5; ++i) test.several[i].found.clear();
  EXPECT_FALSE(test.passed()) << "95 of 100 are at least 88.7 %";
  test.several.clear();
  EXPECT_FALSE(test.passed()) << "none of several was tried";
}

// What decides is the size of an effect beside what must be found, in ulp both.
TEST(Power, CountsEffectsInUnitsOfWhatMustBeFound) {
  Selftest test = good_test();
  Selftest::Outcome effect = fault_run(100, false);
  effect.limit = 1000;
  test.effects = {effect};
  EXPECT_EQ(test.power()[3].runs, 2) << "100 ulp where 1000 must be found";
  test.effects[0].limit = 100;
  EXPECT_EQ(test.power()[2].runs, 201);
  test.quick = true;
  EXPECT_LT(test.power()[1].least_detected, good_test().power()[1].least_detected);
}

// Not every effect is put in every place, and each keeps its own column.
TEST(Limits, AnEffectThatWasNotTriedLeavesItsCellEmpty) {
  Selftest test = good_test();
  test.limits[0].effect = Detection::Effect::row;
  const Document document = document_of({test});
  size_t tables = 0;
  for (const Block& block : document.blocks)
    if (const auto* table = std::get_if<Table>(&block)) {
      ++tables;
      for (const std::vector<Cell>& row : table->rows) EXPECT_EQ(row.size(), table->columns.size());
    }
  EXPECT_GE(tables, 3u);
  const std::string screen = text_of(document, "table");
  const size_t head = screen.find("smallest effect that is found");
  const size_t columns = screen.find("row", head);
  const size_t cell = screen.find("1 T1", head);
  ASSERT_NE(cell, std::string::npos) << screen;
  const auto column_of = [&](size_t at) { return at - screen.rfind('\n', at); };
  EXPECT_NEAR(static_cast<double>(column_of(cell)), static_cast<double>(column_of(columns)), 8)
      << screen;
}

TEST(Passed, AFaultThatChangesNothingIsListedAndNotCounted) {
  const Selftest test = good_test();
  EXPECT_EQ(test.power()[4].runs, 1);
  EXPECT_NE(
      text_of(document_of({test}), "table").find("wrong-page@0: it changed nothing; it needs"),
      std::string::npos);
}

TEST(Cases, HaveNamesOfTheirOwnAndFitTheirPages) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  for (bool quick : {false, true}) {
    const SelftestPlan plan{.config = checkpoint.config(), .prompts = {}, .quick = quick};
    std::vector<SelftestPlan::Case> cases = plan.clean_cases(DType::bf16);
    EXPECT_GE(cases.size(), quick ? 10u : 300u);
    for (SelftestPlan::Case& c : plan.fault_cases(DType::bf16)) cases.push_back(std::move(c));
    std::set<std::string> names;
    for (const SelftestPlan::Case& c : cases) {
      EXPECT_TRUE(names.insert(c.name).second) << c.name;
      Engine engine(checkpoint, cpu_ops(), c.engine);
      for (const Request& request : c.requests) engine.submit(request);  // throws if it cannot fit
    }
    std::set<std::string> seeded;
    for (const SelftestPlan::Case& c : cases)
      if (!c.faults.empty()) seeded.insert(c.faults[0].name);
    for (const Fault& fault : faults())
      EXPECT_EQ(seeded.contains(std::string(fault.name)),
                fault.applies(checkpoint.config()) && plan.can_have(fault.seat))
          << fault.name;
  }
}

Selftest one_of_each() {
  Selftest test = good_test();
  test.faults = {fault_run({}, true), fault_run(3, true), fault_run(1, true), fault_run(0.1, false),
                 fault_run(0, false)};
  return test;
}

TEST(Curve, CountsWhatAMultiplierOnAllLimitsWouldFind) {
  Selftest test = one_of_each();
  test.clean[0].limit_ratio = 0.6;
  test.faults[1].limit_ratio = 3;
  test.faults[0].limit_ratio = std::numeric_limits<double>::infinity();
  for (const Selftest::CurvePoint& point : test.curve()) {
    EXPECT_EQ(point.alarms, point.multiplier < 0.6 ? 1 : 0) << point.multiplier;
    EXPECT_EQ(point.detected[0], 1) << "no multiplier hides what no limit decides";
    EXPECT_EQ(point.detected[1], point.multiplier < 3 ? 1 : 0) << point.multiplier;
    EXPECT_EQ(point.detected[2], 0);
  }
  test.clean[0].limit_ratio = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(test.curve().back().alarms, 1) << "what is no number passes nothing";
}

TEST(Rules, AreCountedOnTheSameRuns) {
  Selftest test = one_of_each();
  test.clean[0].others["three-way"] = {.alarmed = true};
  test.faults[1].others["three-way"] = {.alarmed = true, .first_exact = true};
  test.faults[2].others["three-way"] = {.alarmed = true};
  test.faults[4].others["three-way"] = {.alarmed = true};  // changes nothing: not counted
  const std::vector<Selftest::RuleRow> rows = test.rules();
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
  EXPECT_TRUE(first.at(0).passed()) << text_of(document_of(first), "table");
  // Every bug has an occasion but those that need a pool of more than 2^31 elements, or a position
  // of 2^8: in two layers each.
  EXPECT_EQ(first.at(0).power()[4].runs, 4) << text_of(document_of(first), "table");
  for (const Selftest::CurvePoint& point : first.at(0).curve()) {
    if (point.multiplier != 1) continue;
    EXPECT_EQ(point.alarms, 0);
    for (size_t row = 0; row < 5; ++row)
      EXPECT_EQ(point.detected[row], first.at(0).power()[row].detected);
  }
  const std::vector<Selftest::RuleRow> rules = first.at(0).rules();
  ASSERT_EQ(rules.size(), 3u) << text_of(document_of(first), "table");
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
  EXPECT_EQ(document_of(selftest(run)).json, document_of(first).json);
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
  const std::string write = built_path("write_golden_trace bard-qwen3 ") + path;
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
  EXPECT_EQ(fused.verdict, RunVerdict::diverged) << "one rounding is not what it declares";
  EXPECT_NE(error_of([&] { dtypes_of_traces({path}, {DType::f32}); }).find("give --dtype bf16"),
            std::string::npos);
  EXPECT_EQ(dtypes_of_traces({path}, {DType::f32, DType::bf16}), std::vector{DType::bf16});
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lockstep
