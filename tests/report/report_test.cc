// Reports of results of every kind; JSON is held to tools/schemas.
#include "src/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/judge/story.h"
#include "src/report/output.h"
#include "tests/helpers.h"
#include "tests/report/json_schema.h"
#include "tests/report/results.h"

namespace lockstep {
namespace {

TEST(Story, OfTokensThatNoJudgedOpExplainsSaysSo) {
  Result r = clean_result();
  summarise(r, {.unexplained = "3 of 24 tokens differ"});
  EXPECT_EQ(r.verdict, RunVerdict::inconclusive);
  EXPECT_EQ(exit_status(r), 2);
  EXPECT_NE(r.story.find("3 of 24 tokens differ, so an op that was not judged is wrong"),
            std::string::npos)
      << r.story;
}

Result nothing_result() {
  Result r;
  summarise(r);
  return r;
}

TEST(ReportJson, OfEveryKindOfResultFitsTheSchema) {
  const Json rules = schema_of("result");
  for (const Result& r : {clean_result(), diverged_result(), nothing_result()}) {
    const Json json = Json::parse(report_json(r));
    EXPECT_EQ(violation(json, rules, rules), "");
  }
}

// Every number that a result has is one that is not finite.
Result result_of(double x) {
  Result r = diverged_result();
  for (Finding& f : r.findings) {
    f.value = f.limit = f.want = f.got = f.budgets = f.of_row = x;
    if (f.shape) f.shape->precision = f.shape->recall = x;
  }
  r.first = r.findings[0];
  for (PlaceSummary& p : r.places) {
    p.worst_t1 = p.worst_t2 = p.worst_of_row = x;
    p.introduced_rms = p.propagated_rms = p.total_rms = x;
    p.measured = p.compared = true;
    for (ErrorProfile::WorstElement& e : p.errors.worst) e.want = e.got = e.budgets = x;
    p.looks_like = {{"RMSNorm over blocks of 16", 1920, 1921, 56, 57}, {"another", 1, 2, 3, 4}};
  }
  r.requests[0].margins[0].ulp = x;
  r.logits->kl = {x, x, x, x, x, x};
  r.requests[0].flips[0].margin_ulp = r.scope.largest = r.limits["T1"] = x;
  LogitsSummary& l = *r.logits;
  l.max_abs = l.kl_mean = l.kl_reference = l.expected_flips = l.least_margin_ulp = x;
  return r;
}

TEST(ReportText, SaysWhatAWrongOpLooksLike) {
  Result r = diverged_result();
  const auto place = std::ranges::find(r.places, r.findings[0].node.place, &PlaceSummary::place);
  ASSERT_NE(place, r.places.end());
  EXPECT_EQ(text_of(document_of(r), "table").find("looks like"), std::string::npos);
  place->looks_like = {{"RMSNorm over blocks of 16", 19, 20, 5, 6}};
  const std::string says = "RMSNorm over blocks of 16 (explains 19 of 20 elements, 5 of 6 nodes)";
  EXPECT_EQ(text_of(place->looks_like), says);
  EXPECT_NE(text_of(document_of(r), "table").find("looks like"), std::string::npos);
  const TestSuite suite = tests_of(r);
  EXPECT_TRUE(std::ranges::any_of(suite.cases, [&](const TestCase& test) {
    return test.message.ends_with("; looks like " + says);
  }));
}

// As where a layer rounds otherwise than the others do.
TEST(ReportText, LeavesOutTheSizeOfWhatHasNone) {
  Result r = diverged_result();
  Finding& finding = r.findings[0];
  finding.index.clear();
  finding.limit = 0;
  finding.statistic = StatisticKind::contract;
  finding.shape.reset();
  finding.rule = "one kernel rounds in one way";
  r.first = finding;
  summarise(r);
  const std::string text = text_of(document_of(r), "table");
  EXPECT_NE(text.find("what    one kernel rounds in one way"), std::string::npos) << text;
  EXPECT_EQ(text.find(" size"), std::string::npos) << text;
}

TEST(ResultFromJson, GivesBackEveryKindOfResult) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (Result r : {clean_result(), diverged_result(), nothing_result(), result_of(std::nan("")),
                   result_of(kInfinity), result_of(-kInfinity)}) {
    const std::string json = report_json(r);
    const Result back = result_from_json(json, "r.json");
    EXPECT_EQ(report_json(back), json);
    if (!r.requests.empty()) r.requests[0].name = back.requests[0].name;  // JSON is UTF-8
    EXPECT_EQ(text_of(document_of(back), "table"), text_of(document_of(r), "table"));
    EXPECT_EQ(text_of(document_of(back), "csv"), text_of(document_of(r), "csv"));
  }
}

TEST(ResultFromJson, ReadsWhatOlderVersionsKept) {
  Json old = Json::parse(report_json(diverged_result()));
  old["nodes"].erase("confounded");
  EXPECT_NE(error_of([&] { result_from_json(old.dump(), "r.json"); }), "");
  old["format_version"] = "1.1";
  const Result back = result_from_json(old.dump(), "r.json");
  EXPECT_EQ(back.counts[Verdict::propagated], 80);
  EXPECT_EQ(back.counts[Verdict::confounded], 0);
}

TEST(ResultFromJson, KeepsNumbersThatAreNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double x : {kInfinity, -kInfinity}) {
    const Result back = result_from_json(report_json(result_of(x)), "r.json");
    EXPECT_EQ(back.first->got, x);
    EXPECT_EQ(back.places[1].worst_t2, x);
    EXPECT_EQ(back.limits.at("T1"), x);
    EXPECT_EQ(back.logits->kl_mean, x);
    EXPECT_EQ(back.requests[0].flips[0].margin_ulp, x);
  }
  const Result back = result_from_json(report_json(result_of(std::nan(""))), "r.json");
  EXPECT_TRUE(std::isnan(back.first->got) && std::isnan(back.scope.largest));
}

TEST(ResultFromJson, KnowsWhereTheWrongElementsAre) {
  const Result r = diverged_result();
  const Result back = result_from_json(report_json(r), "r.json");
  EXPECT_EQ(back.first->rule, r.first->rule);
  EXPECT_EQ(back.first->shape->where, r.first->shape->where);
  EXPECT_EQ(back.first->statistic, StatisticKind::max_error);
  EXPECT_FALSE(back.findings[1].statistic);
  Result bare = r;
  bare.findings[0].rule.clear();
  EXPECT_EQ(result_from_json(report_json(bare), "r.json").findings[0].shape->where,
            r.first->shape->where);
}

TEST(ResultFromJson, RefusesWhatIsNoResult) {
  const auto refusal = [](const std::string& text) {
    return error_of([&] { result_from_json(text, "r.json"); });
  };
  Json other = Json::parse(report_json(clean_result())), wrong = other;
  other["format"] = "lockstep-diff";
  wrong["points"][0]["point"] = "nowhere";
  Json cut = Json::parse(report_json(diverged_result())), short_bins = cut;
  cut["points"][3]["errors"]["map"].erase(0);
  short_bins["points"][3]["errors"]["histogram"].erase(0);
  for (const std::string& text : {std::string("{"), std::string("[]"), other.dump(), wrong.dump(),
                                  cut.dump(), short_bins.dump()})
    EXPECT_TRUE(refusal(text).starts_with("r.json") &&
                refusal(text).ends_with(": it is damaged, or no result of lockstep"))
        << refusal(text);
}

TEST(ReportJson, TheSchemaCanRefuse) {
  const Json rules = schema_of("result");
  const Json good = Json::parse(report_json(diverged_result()));
  const auto refused = [&](auto spoil) {
    Json bad = good;
    spoil(bad);
    return !violation(bad, rules, rules).empty();
  };
  EXPECT_TRUE(refused([](Json& j) { j["verdict"] = "fine"; }));
  EXPECT_TRUE(refused([](Json& j) { j.erase("nodes"); }));
  EXPECT_TRUE(refused([](Json& j) { j["nodes"]["judged"] = "many"; }));
  EXPECT_TRUE(refused([](Json& j) { j["nodes"]["judged"] = -1; }));
  EXPECT_TRUE(refused([](Json& j) { j["first"]["layer"] = 1.5; }));
  EXPECT_TRUE(refused([](Json& j) { j["first"].erase("point"); }));
  EXPECT_TRUE(refused([](Json& j) { j["findings"][1]["value"] = nullptr; }));
  EXPECT_TRUE(refused([](Json& j) { j["surprise"] = 1; }));
}

TEST(ReportJson, SaysWhatWasFound) {
  const Json json = Json::parse(report_json(diverged_result()));
  EXPECT_EQ(json["verdict"], "diverged");
  EXPECT_EQ(json["nodes"]["expected"], 412);
  EXPECT_EQ(json["nodes"]["propagated"], 80);
  EXPECT_EQ(json["first"]["layer"], 2);
  EXPECT_EQ(json["first"]["point"], "attn.q_rope");
  EXPECT_EQ(json["first"]["index"], Json({17, 3, 5}));
  EXPECT_EQ(json["first"]["rule"],
            "37 of 2048 elements over their budget; wrong: dims <= 31, positions >= 1 (91 % of the "
            "elements there)");
  EXPECT_EQ(json["first"]["precision"], 0.919);
  EXPECT_EQ(json["first"]["recall"], 1);
  EXPECT_TRUE(json["findings"][1]["precision"].is_null());
  EXPECT_EQ(json["findings"][1]["got"], "NaN");
  EXPECT_EQ(json["findings"][1]["budgets"], "Infinity");
  EXPECT_TRUE(json["findings"][1]["layer"].is_null());
  EXPECT_EQ(json["logits"]["argmax_equal"], "24/24");
  EXPECT_TRUE(Json::parse(report_json(clean_result()))["first"].is_null());
}

TEST(ReportJson, SaysNothingOfWhatWasNotMeasured) {
  const Json points = Json::parse(report_json(clean_result()))["points"];
  EXPECT_EQ(points[1]["worst"]["t2"], 0.5);
  EXPECT_EQ(points[1]["total_rms"], 0.003);
  EXPECT_TRUE(points[1]["errors"].is_null()) << "it is right";
  for (const char* name : {"t1", "t2", "of_row"}) EXPECT_TRUE(points[2]["worst"][name].is_null());
  for (const char* name : {"introduced_rms", "propagated_rms", "total_rms"})
    EXPECT_TRUE(points[2][name].is_null()) << name;
  const Json kl = Json::parse(report_json(clean_result()))["logits"]["kl_percentiles"];
  EXPECT_EQ(kl["p90"], 2e-5);
  EXPECT_TRUE(kl["p999"].is_null());
}

TEST(ReportJson, SaysWhereErrorsLie) {
  const Json points = Json::parse(report_json(diverged_result()))["points"];
  const Json& errors = points[3]["errors"];
  EXPECT_EQ(errors["elements"], 128);
  EXPECT_EQ(errors["by_head"]["axis"], "head");
  EXPECT_EQ(errors["by_head"]["buckets"][3], Json({{"first", 3}, {"last", 3}, {"budgets", 35.2}}));
  EXPECT_EQ(errors["by_head"]["buckets"][2]["budgets"], 0.3);
  EXPECT_TRUE(errors["by_position"]["buckets"][15]["budgets"].is_null());
  EXPECT_EQ(errors["by_position"]["buckets"][16]["budgets"], 0.3);
  EXPECT_EQ(errors["map"][17], Json({0.3, 0.3, 0.3, 35.2}));
  EXPECT_EQ(errors["histogram"][15], 104) << "0.3 is in (1/4, 1/2]";
  EXPECT_EQ(errors["histogram"][22], 24) << "35.2 is in (32, 64]";
  EXPECT_EQ(errors["worst"].size(), 10u);
  EXPECT_EQ(errors["worst"][0]["index"], Json({17, 3, 0}));
  EXPECT_EQ(errors["worst"][0]["pass"], 3);
}

TEST(Story, SaysHowWellARuleFitsUnlessItFitsEntirely) {
  const auto said = [](double precision, double recall) {
    return rule_of({.rule = "", .shape = ShapeRule{"head 3", precision, recall}});
  };
  EXPECT_EQ(said(1, 1), "wrong: head 3");
  EXPECT_EQ(said(0.5, 1), "wrong: head 3 (50 % of the elements there)");
  EXPECT_EQ(said(1, 0.999), "wrong: head 3 (99 % of all wrong ones)");
  EXPECT_EQ(said(0.999, 0.99),
            "wrong: head 3 (99 % of the elements there, 99 % of all wrong ones)");
  EXPECT_EQ(rule_of({.rule = "x"}), "x");
}

TEST(Story, SaysHowLargeADifferenceIsWhereBudgetsSayLittle) {
  const auto said = [](double budgets, double of_row) {
    return text_of(Finding{.statistic = StatisticKind::max_error,
                           .index = {0, 1},
                           .want = 0,
                           .got = 1e-5,
                           .budgets = budgets,
                           .of_row = of_row});
  };
  EXPECT_NE(said(4.1e39, 1e-5).find("(1e-05 x the size of its row), over 1e9 budgets (T1)"),
            std::string::npos)
      << said(4.1e39, 1e-5);
  EXPECT_EQ(said(12, 1e-5).find("the size of its row"), std::string::npos) << "it is small";
  EXPECT_NE(said(12, 0.5).find("(0.5 x the size of its row), 12 budgets (T1)"), std::string::npos);
}

TEST(Reports, SayTheWorstElementBesideItsRow) {
  Result r = clean_result();
  r.places.push_back({.place = {&point("mlp.up"), 3},
                      .expected = 1,
                      .judged = 1,
                      .verdict = Verdict::introduced,
                      .worst_t1 = 4.1e39,
                      .worst_of_row = 0.031});
  EXPECT_NE(text_of(document_of(r), "csv").find("3,mlp.up,introduced,1,1,4.1e+39,0,0.031,"),
            std::string::npos);
  EXPECT_EQ(Json::parse(report_json(r))["points"].back()["worst"]["of_row"], 0.031);
}

TEST(ReportTable, EndsWithTheVerdict) {
  const auto last_line = [](const Result& r) {
    std::string text = text_of(document_of(r), "table");
    EXPECT_EQ(text.back(), '\n');
    text.pop_back();
    return text.substr(text.rfind('\n') + 1);
  };
  Result clean = clean_result();
  clean.scope.layers = 1;
  clean.scope.positions = 18;
  EXPECT_EQ(last_line(clean),
            "clean: No bug shown in 412 nodes (1 layer, positions to 17; 1 untested)");
  clean.hidden = 30;
  EXPECT_NE(last_line(clean).find("; 30 nodes not recorded, judged with those that read them"),
            std::string::npos);
  EXPECT_EQ(last_line(diverged_result()),
            "diverged: layer 2 attn.q_rope introduces the first error (2 ops wrong of 5)");
  EXPECT_EQ(last_line(nothing_result()).find("inconclusive: Nothing was judged"), 0u);
}

TEST(ReportCsv, HasOneLineAPlace) {
  const std::string csv = text_of(document_of(clean_result()), "csv");
  EXPECT_EQ(std::ranges::count(csv, '\n'), 4);
  EXPECT_NE(csv.find("\n,embed,bitwise,4,4"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\n0,attn.q,rounding,4,4,0.75,0.5,0.002,0,17,0"), std::string::npos) << csv;
}

TEST(Story, OfTokensThatDiffer) {
  Result r = clean_result();
  EXPECT_NE(r.story.find("no token differs"), std::string::npos);
  r.logits->argmax_equal = 22;
  r.logits->explained_flips = 2;
  summarise(r);
  EXPECT_NE(r.story.find("2 of 24 tokens differ as rounding allows"), std::string::npos);
  r.logits->explained_flips = 1;
  summarise(r);
  EXPECT_NE(r.story.find("1 by more than rounding explains"), std::string::npos);
}

TEST(Verdicts, GiveTheExitStatus) {
  EXPECT_EQ(exit_status(clean_result()), 0);
  EXPECT_EQ(exit_status(diverged_result()), 1);
  EXPECT_EQ(exit_status(nothing_result()), 2);
}

}  // namespace
}  // namespace lockstep
