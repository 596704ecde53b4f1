// Reports of results of every kind; JSON is held to tools/result.schema.json.
#include "src/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "src/judge/story.h"
#include "src/report/output.h"
#include "tests/helpers.h"
#include "tests/places.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

Json schema() {
  std::ifstream file(source_path("tools/result.schema.json"));
  return Json::parse(file);
}

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return type == "boolean" && value.is_boolean();
}

// The part of JSON RoundingContract that result.schema.json uses. Returns what is wrong, "" when
// nothing is.
std::string violation(const Json& value, const Json& rule, const Json& root, std::string at = "$") {
  static const std::set<std::string> known = {
      "$schema", "$defs",  "$ref",  "title",    "description",          "type",
      "enum",    "const",  "anyOf", "required", "additionalProperties", "properties",
      "items",   "minimum"};
  for (const auto& [keyword, unused] : rule.items())
    if (!known.contains(keyword)) return at + ": the schema uses unknown keyword " + keyword;
  if (rule.contains("$ref")) {
    const std::string ref = rule["$ref"].get<std::string>().substr(1);
    return violation(value, root.at(Json::json_pointer(ref)), root, at);
  }
  if (rule.contains("anyOf")) {
    std::string all;
    for (const Json& option : rule["anyOf"]) {
      const std::string wrong = violation(value, option, root, at);
      if (wrong.empty()) return "";
      all += wrong + " | ";
    }
    return all;
  }
  if (rule.contains("type") && !is_of_type(value, rule["type"])) return at + ": type";
  if (rule.contains("const") && value != rule["const"]) return at + ": const";
  if (rule.contains("enum") && std::ranges::count(rule["enum"], value) == 0) return at + ": enum";
  if (rule.contains("minimum") && value < rule["minimum"]) return at + ": minimum";
  if (value.is_object()) {
    for (const Json& name : rule.value("required", Json::array()))
      if (!value.contains(name)) return at + ": lacks " + name.get<std::string>();
    for (const auto& [name, inner] : value.items()) {
      const Json properties = rule.value("properties", Json::object());
      const Json other = rule.value("additionalProperties", Json(true));
      std::string wrong;
      if (properties.contains(name))
        wrong = violation(inner, properties[name], root, at + "." + name);
      else if (other.is_object())
        wrong = violation(inner, other, root, at + "." + name);
      else if (other == false)
        wrong = at + ": unknown " + name;
      if (!wrong.empty()) return wrong;
    }
  }
  if (value.is_array() && rule.contains("items"))
    for (size_t i = 0; i < value.size(); ++i)
      if (std::string wrong =
              violation(value[i], rule["items"], root, at + "[" + std::to_string(i) + "]");
          !wrong.empty())
        return wrong;
  return "";
}

Result clean_result() {
  Result r;
  r.expected = r.judged = 412;
  r.counts[0] = 130;
  r.counts[1] = 282;
  r.places = {{.place = {&point("embed"), -1}, .expected = 4, .judged = 4},
              {.place = {&point("attn.q"), 0},
               .expected = 4,
               .judged = 4,
               .verdict = Verdict::rounding,
               .worst_t1 = 0.75,
               .worst_t2 = 0.5,
               .worst_of_row = 0.002,
               .worst_position = 17}};
  r.requests = {{.id = 0,
                 .name = "\xff not UTF-8",
                 .prompt = {1, 2},
                 .tokens = {3},
                 .argmax = {3},
                 .text = "x",
                 .flips = {{20, 5, 9, 1.2, true}}}};
  r.logits = LogitsSummary{.max_abs = 0.1,
                           .kl_mean = 1e-5,
                           .compared = 24,
                           .argmax_equal = 24,
                           .least_margin_ulp = 1.25};
  r.provenance = {{"model", "m"}};
  r.limits = {{"T1", 1.0}};
  r.scope = {.layers = 1, .positions = 18};
  r.blind = {"decoding (prefill only): --max-new 2"};
  summarise(r);
  return r;
}

Result diverged_result() {
  Result r = clean_result();
  r.findings = {{.node = {.place = {&point("attn.q_rope"), 2}, .pass = 3, .request = 0},
                 .position = 17,
                 .statistic = StatisticKind::max_error,
                 .value = 35.2,
                 .limit = 1,
                 .index = {17, 3, 5},
                 .want = 0.103,
                 .got = -0.25,
                 .budgets = 35.2,
                 .rule = "37 of 2048 elements over their budget",
                 .shape = ShapeRule{"dims <= 31, positions >= 1", 0.919, 1}},
                {.node = {.place = {&point("logits"), -1}},
                 .verdict = Verdict::nonfinite,
                 .index = {0, 5},
                 .got = std::numeric_limits<double>::quiet_NaN(),
                 .budgets = std::numeric_limits<double>::infinity()}};
  r.confirmations = {{{&point("attn.q_rope"), 2}, true, "confirmed: found again"},
                     {{&point("logits"), -1}, false, "not tried: only the first 1 places are"}};
  r.first = r.findings[0];
  r.counts = {130, 200, 80, 1, 1, 0, 0};
  summarise(r);
  return r;
}

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
  const Json rules = schema();
  for (const Result& r : {clean_result(), diverged_result(), nothing_result()}) {
    const Json json = Json::parse(report_json(r));
    EXPECT_EQ(violation(json, rules, rules), "") << json.dump(2);
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
  }
  r.requests[0].flips[0].margin_ulp = r.scope.largest = r.limits["T1"] = x;
  LogitsSummary& l = *r.logits;
  l.max_abs = l.kl_mean = l.kl_reference = l.expected_flips = l.least_margin_ulp = x;
  return r;
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
  for (const std::string& text : {std::string("{"), std::string("[]"), other.dump(), wrong.dump()})
    EXPECT_EQ(refusal(text).find("r.json was wanted to be a result of lockstep"), 0u) << text;
}

TEST(ReportJson, TheSchemaCanRefuse) {
  const Json rules = schema();
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
  EXPECT_EQ(last_line(clean_result()),
            "clean: No bug shown in 412 nodes (1 layer, positions to 17; 1 untested)");
  EXPECT_EQ(last_line(diverged_result()),
            "diverged: layer 2 attn.q_rope introduces the first error (2 ops wrong of 2)");
  EXPECT_EQ(last_line(nothing_result()).find("inconclusive: Nothing was judged"), 0u);
}

TEST(ReportCsv, HasOneLineAPlace) {
  const std::string csv = text_of(document_of(clean_result()), "csv");
  EXPECT_EQ(std::ranges::count(csv, '\n'), 3);
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
