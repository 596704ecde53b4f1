// A run beside a baseline: what fails a check and what is a note of it, and the baseline's file. No
// run is made here.
#include "src/check/compare.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/check/check_report.h"
#include "src/report/output.h"
#include "src/report/render.h"
#include "tests/helpers.h"
#include "tests/report/json_schema.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr int kLayers = 2;

PlaceSummary place_of(const Point& point, int layer) {
  return {.place = {&point, layer}, .expected = 6, .judged = 6};
}

// A clean run of two requests, 3 tokens in and 3 out each.
Result clean_run() {
  Result run;
  run.verdict = RunVerdict::clean;
  run.places.push_back(place_of(point("embed"), -1));
  for (int layer = 0; layer < kLayers; ++layer)
    for (const Point* p : {&point("attn.norm"), &point("attn.q"), &point("attn.kv")})
      run.places.push_back(place_of(*p, layer));
  run.places.push_back(place_of(point("token"), -1));
  run.expected = run.judged = 6 * std::ssize(run.places);
  for (int32_t id : {0, 1})
    run.requests.push_back({.id = id,
                            .name = id == 0 ? "" : "short",
                            .prompt = {1, 2, 3},
                            .tokens = {10, 11, 12},
                            .argmax = {10, 11, 12}});
  run.reached = {{OpKind::norm, {.inner = 0.1, .rms = 1.0, .share = 0.002, .gain = 1e-7}},
                 {OpKind::linear, {.inner = 0.3, .rms = 0.9, .share = 0.004, .gain = 2e-7}}};
  run.provenance = {{"model", "models/m.1/"},    {"model_xxh3", "abcd"}, {"compute_dtype", "bf16"},
                    {"git_sha", "1234567890ab"}, {"device", "cpu"},      {"threads", "2"},
                    {"created_utc", "today"}};
  run.blind = {"positions rounded to 16 bits (none is past 255; the last is 4)"};
  run.notes = {"K/V audit: 60 rows written, 204 read back, 0 findings"};
  return run;
}

std::vector<Request> requests() {
  return {{.prompt = {1, 2, 3}, .max_new = 3},
          {.name = "short", .prompt = {1, 2, 3}, .max_new = 3}};
}

// All rows of those positions at every place; `spoiled`: at layer 1 attn.q, position 4 differs.
RunBits bits_of(const Result& run, bool spoiled = false) {
  RunBits bits;
  for (const RequestResult& request : run.requests) {
    Pass pass;
    const auto end = static_cast<int32_t>(request.prompt.size() + request.tokens.size()) - 1;
    for (const PlaceSummary& summary : run.places)
      for (int32_t p = 0; p < end; ++p) {
        RecordedTensor& tensor =
            pass.tensors.emplace_back(RecordedTensor{.point = summary.place.point,
                                                     .layer = summary.place.layer,
                                                     .rows = {{request.id, p}},
                                                     .dtype = DType::f32,
                                                     .shape = {1, 1},
                                                     .data = Tensor({1, 1}, DType::f32)});
        const bool here =
            spoiled && p == 4 && summary.place == Place{&point("attn.q"), 1} && request.id == 1;
        tensor.data.as<float>()[0] = here ? 0.5F : 0.25F;
      }
    pass.logits.push_back({.row = {request.id, 3}, .ids = {11, 9}, .values = {2.0, 1.9921875}});
    bits.add(pass);
  }
  return bits;
}

Baseline baseline() {
  const Result run = clean_run();
  return baseline_of(run, requests(), {}, bits_of(run));
}

CheckResult compared(const Result& run, const Baseline& with, bool spoiled = false,
                     const std::vector<bool>& drawn = {false, false}) {
  return compare(with, run, bits_of(run, spoiled), drawn, {.path = "base.json"});
}
CheckResult compared(const Result& run) { return compared(run, baseline()); }

std::vector<std::string> texts_of(const std::vector<CheckResult::Item>& items) {
  std::vector<std::string> texts;
  for (const CheckResult::Item& item : items)
    texts.push_back(fmt::format("{}: {}", name_of(item.kind), item.says));
  return texts;
}

void expect_one(const std::vector<CheckResult::Item>& items, const std::string& text) {
  ASSERT_EQ(items.size(), 1u) << Json(texts_of(items)).dump(1);
  EXPECT_EQ(texts_of(items)[0], text);
}

TEST(Compare, OfTheSameRunPassesWithoutANote) {
  const CheckResult result = compared(clean_run());
  EXPECT_EQ(result.verdict, CheckResult::Verdict::pass);
  EXPECT_EQ(exit_status(result), 0);
  EXPECT_EQ(texts_of(result.notes), std::vector<std::string>{});
  EXPECT_EQ(result.story, "48 of 48 nodes within rounding, no less looked at than in base.json");
}

TEST(Compare, OfAFindingFailsOncePerPlaceAndNamesIt) {
  Result run = clean_run();
  for (int32_t pass : {0, 1})
    run.findings.push_back({.node = {{&point("attn.q"), 1}, pass, 0},
                            .position = 2,
                            .statistic = StatisticKind::max_error,
                            .value = 35.2,
                            .limit = 1,
                            .index = {2, 3},
                            .want = 0.103,
                            .got = -0.25,
                            .budgets = 35.2});
  run.first = run.findings[0];
  run.verdict = RunVerdict::diverged;
  run.story = "layer 1 attn.q introduces the first error";
  const CheckResult result = compared(run);
  EXPECT_EQ(exit_status(result), 1);
  EXPECT_EQ(result.story, run.story);
  expect_one(result.failures,
             "introduced: layer 1 attn.q: 2 of 6 nodes; request 0, position 2, index "
             "[2, 3], want 0.103, got -0.25, 35.2 budgets (T1)");
  EXPECT_NE(annotations_of(result).find("::error title=lockstep%3A introduced at linear::layer 1 "
                                        "attn.q: 2 of 6 nodes"),
            std::string::npos)
      << annotations_of(result);
  const std::string junit = render_junit(document_of(result));
  EXPECT_NE(junit.find("<testcase classname=\"m_1 bf16\" name=\"linear\">\n      <failure "
                       "message=\"layer 1 attn.q, pass 0: request 0, position 2"),
            std::string::npos)
      << junit;
  EXPECT_NE(junit.find("failures=\"1\""), std::string::npos) << junit;
}

TEST(Compare, OfARunThatIsInconclusiveIsTooWhateverElse) {
  Result run = clean_run();
  run.verdict = RunVerdict::inconclusive;
  run.story = "The reference contradicts itself";
  run.places.pop_back();
  const CheckResult result = compared(run);
  EXPECT_EQ(exit_status(result), 2);
  EXPECT_EQ(result.story, run.story);
  EXPECT_TRUE(annotations_of(result).starts_with("::error title=lockstep%3A inconclusive::The"));
  EXPECT_NE(render_junit(document_of(result)).find("<error message=\"The reference"),
            std::string::npos);
}

TEST(Compare, FailsWhereLessIsLookedAt) {
  const auto failing = [](auto spoil) {
    Result run = clean_run();
    spoil(run);
    const CheckResult result = compared(run);
    EXPECT_EQ(exit_status(result), 1);
    return result.failures;
  };
  expect_one(failing([](Result& run) { run.places.erase(run.places.begin()); }),
             "coverage: embed: looked at no more; the baseline has 6 nodes of it");
  expect_one(failing([](Result& run) { run.places.erase(run.places.begin() + 1); }),
             "coverage: attn.norm: looked at in 1 layers, in the baseline in 2");
  expect_one(failing([](Result& run) { run.places[1].judged = 5; }),
             "coverage: attn.norm: 11 nodes judged, in the baseline 12");
  expect_one(failing([](Result& run) { run.requests[1].tokens.pop_back(); }),
             "coverage: request 1: 4 positions, in the baseline 5");
  expect_one(failing([](Result& run) { run.blind.push_back("bugs of decoding (prefill only)"); }),
             "coverage: tested in the baseline and not in this run: bugs of decoding (prefill "
             "only)");
  expect_one(failing([](Result& run) { run.places[1].excluded = 3; }),
             "nonfinite: attn.norm: 3 elements are not finite, in the baseline 0");
}

TEST(Compare, MindsWhatIsUntestedAndNotByHowMuch) {
  Result run = clean_run();
  run.blind = {"positions rounded to 16 bits (none is past 255; the last is 3)"};
  EXPECT_EQ(compared(run).verdict, CheckResult::Verdict::pass);
  run.blind.clear();
  EXPECT_EQ(compared(run).verdict, CheckResult::Verdict::pass);
}

TEST(Compare, NotesOtherBitsWithTheirFirstPlace) {
  const CheckResult result = compared(clean_run(), baseline(), /*spoiled=*/true);
  EXPECT_EQ(result.verdict, CheckResult::Verdict::pass);
  expect_one(result.notes,
             "bits: bits changed in 1 of 10 positions, at 1 of 6 places, the first is layer 1 "
             "attn.q");
}

TEST(Compare, NotesAFlipWithItsMargin) {
  Result run = clean_run();
  run.requests[1].argmax[1] = 11;
  Baseline then = baseline();
  then.texts[1].argmax = {10, 9, 12};
  expect_one(compared(run, then).notes,
             "flip: request 1 (short), position 3: token 11 is the most likely, 9 in the baseline "
             "(margin 0.5 ulp)");
  then.texts[1].argmax = {10, 8, 12};
  EXPECT_NE(texts_of(compared(run, then).notes)[0].find("(margin over 0.5 ulp)"),
            std::string::npos);
}

TEST(Compare, NotesATextThatWasDrawnAnotherWay) {
  Result run = clean_run();
  run.requests[0].tokens = run.requests[0].argmax = {10, 13};
  for (PlaceSummary& place : run.places) place.judged = 4;
  EXPECT_EQ(compared(run).verdict,
            CheckResult::Verdict::fail);  // one that was forced must be as long
  const CheckResult drawn = compared(run, baseline(), /*spoiled=*/false, {true, false});
  EXPECT_EQ(drawn.verdict, CheckResult::Verdict::pass) << drawn.story;
  expect_one(drawn.notes,
             "drawn: request 0 drew another token at position 4: its text is not compared from "
             "there");
}

TEST(Compare, NotesDriftOverItsFactorAlone) {
  Result run = clean_run();
  run.reached[OpKind::linear].share = 0.006;  // 1.5 times, and 5e-4 are for chance
  EXPECT_EQ(compared(run).notes.size(), 0u);
  run.reached[OpKind::linear].share = 0.008;
  expect_one(compared(run).notes,
             "drift: linear comes to T3 0.008, 0.004 in the baseline: 2 times");
  run.reached[OpKind::linear].share = std::nan("");
  EXPECT_EQ(compared(run).notes.size(), 1u);
}

TEST(Compare, NotesWhereTheRunWasMade) {
  Result run = clean_run();
  run.provenance["threads"] = "8";
  run.provenance["git_sha"] = run.provenance["created_utc"] = "another";
  run.provenance.erase("device");
  const std::vector<std::string> notes = texts_of(compared(run).notes);
  EXPECT_EQ(notes,
            (std::vector<std::string>{"provenance: device is \"\", \"cpu\" in the baseline",
                                      "provenance: threads is \"8\", \"2\" in the baseline"}));
}

TEST(BaselineFile, ComesBackAndHasALineAnOpClass) {
  Baseline base = baseline();
  base.classes[1].limits = {.inner = 1, .rms = 1.25, .share = 0.01};
  base.texts[0].argmax = {10, 11, 99};
  base.texts[1].name = "<\"\n";
  const std::string text = json_of(base);
  const std::string path = temp_path("base.json");
  std::ofstream(path) << text;
  const Baseline back = read_baseline(path);
  EXPECT_EQ(json_of(back), text);
  EXPECT_EQ(back.limits().of(OpKind::norm, DType::bf16), base.classes[1].limits);
  EXPECT_EQ(back.limits().of(OpKind::linear, DType::bf16), OpLimits{});
  for (const char* line :
       {"\n    \"linear\": {\"T1_inner\":0.3,\"T2_T4\":0.9,\"T3\":0.004,\"T5_gain\":2e-07}",
        "\n    \"attn.q\": {\"layers\":2,\"nodes\":12,\"excluded\":0,\"bits\":\"",
        "\n  \"model\": \"m.1\""})
    EXPECT_NE(text.find(line), std::string::npos) << line << " is not in " << text;
  EXPECT_EQ(text.find("today"), std::string::npos) << "a date changes with each run";
}

TEST(BaselineFile, IsRefusedWhenItIsNone) {
  const Json good = Json::parse(json_of(baseline()));
  const auto refusal = [&](auto spoil) {
    Json bad = good;
    spoil(bad);
    const std::string path = temp_path("bad.json");
    std::ofstream(path) << bad.dump();
    const std::string error = error_of([&] { read_baseline(path); });
    EXPECT_TRUE(error.starts_with(path)) << error;
    EXPECT_NE(error.find("no baseline of lockstep check"), std::string::npos) << error;
    EXPECT_NE(error.find("--update"), std::string::npos) << error;
  };
  refusal([](Json& j) { j = "text"; });
  refusal([](Json& j) { j["format"] = "lockstep-result"; });
  refusal([](Json& j) { j["format_version"] = "2.0"; });
  for (const char* key : {"dtype", "classes", "points", "texts", "provenance", "untested"})
    refusal([&](Json& j) { j.erase(key); });
  for (const char* key : {"classes", "points", "texts"}) refusal([&](Json& j) { j[key].clear(); });
  refusal([](Json& j) { j["classes"]["rotary"] = j["classes"]["norm"]; });
  refusal([](Json& j) { j["classes"]["norm"]["T3"] = "much"; });
  refusal([](Json& j) { j["classes"]["norm"]["T3"] = -1; });
  refusal([](Json& j) { j["points"]["attn.z"] = j["points"]["attn.q"]; });
  refusal([](Json& j) { j["points"]["attn.q"]["layers"] = 3; });
  refusal([](Json& j) { j["points"]["attn.q"]["bits"] = "xyz"; });
  refusal([](Json& j) { j["texts"][0]["tokens"].clear(); });
  refusal([](Json& j) { j["texts"][0]["tokens"].push_back(5); });
  refusal([](Json& j) { j["texts"][0]["tokens"][0] = 1LL << 40; });
  refusal([](Json& j) { j["texts"][0]["argmax"] = {1}; });
  const std::string whole = json_of(baseline());
  const std::string cut = temp_path("cut.json");
  std::ofstream(cut) << whole.substr(0, whole.size() / 2);
  EXPECT_NE(error_of([&] { read_baseline(cut); }).find("damaged"), std::string::npos);
  EXPECT_NE(error_of([&] { read_baseline(temp_path("none")); }).find("none"), std::string::npos);
}

TEST(BaselineFile, TakesThePlaceOfABaselineAlone) {
  const TempFolder folder;
  const std::string whole = json_of(baseline());
  std::string old = whole;
  old.replace(old.find("1.0"), 3, "0.9");
  for (const std::string& text : {whole, old, "<<<<<<< ours\n" + whole, std::string()})
    EXPECT_NO_THROW(check_replaceable(folder.write("old.json", text))) << text;
  EXPECT_NO_THROW(check_replaceable(folder / "none.json"));
  EXPECT_NO_THROW(check_replaceable("/dev/null"));
  for (const char* text : {"{\"format\": \"lockstep-result\"}\n", "int main() {}\n"}) {
    const std::string path = folder.write("other", text);
    EXPECT_EQ(error_of([&] { check_replaceable(path); }),
              path +
                  " is no baseline of lockstep check, and --update replaces nothing else: name "
                  "another file, or remove that one");
  }
}

TEST(RunBits, AreTheSameInAnyOrderOfPassesAndNotOfRows) {
  const auto pass_of = [](std::vector<Row> rows, std::vector<float> values) {
    Pass pass;
    RecordedTensor& tensor = pass.tensors.emplace_back(
        RecordedTensor{.point = &point("embed"), .rows = rows, .dtype = DType::f32});
    tensor.shape = {std::ssize(values), 1};
    tensor.data = Tensor(tensor.shape, DType::f32);
    std::ranges::copy(values, tensor.data.as<float>());
    return pass;
  };
  const auto bits_of = [](const std::vector<Pass>& passes) {
    RunBits bits;
    for (const Pass& pass : passes) bits.add(pass);
    return bits.of(Place{&point("embed"), -1});
  };
  const uint64_t all = bits_of({pass_of({{0, 0}, {0, 1}, {1, 0}}, {1, 2, 3})});
  EXPECT_NE(all, 0u);
  EXPECT_EQ(bits_of({pass_of({{1, 0}}, {3}), pass_of({{0, 0}, {0, 1}}, {1, 2})}), all);
  EXPECT_NE(bits_of({pass_of({{0, 0}, {0, 1}, {1, 0}}, {2, 1, 3})}), all) << "rows swapped";
}

TEST(AsksOf, TellsRequestsApart) {
  const Request one{.prompt = {1, 2}, .max_new = 3, .eos = {7}, .stop = {"a"}};
  std::vector<Request> others(8, one);
  others[0].prompt = {1, 2, 3};
  others[1].max_new = 4;
  others[2].eos.clear();
  others[3].stop = {"b"};
  others[4].sampling.seed = 1;
  others[5].samples = 2;
  others[6].forced = {5};
  others[7].arrival = 1;
  for (const Request& other : others) EXPECT_NE(asks_of(other), asks_of(one));
  Request named = one;
  named.name = "a name is for people";
  EXPECT_EQ(asks_of(named), asks_of(one));
}

TEST(CheckReport, FitsItsSchemaAndEveryFormat) {
  Result bad = clean_run();
  bad.verdict = RunVerdict::diverged;
  bad.findings = {{.node = {{&point("attn.norm"), 0}, 0, 0}, .verdict = Verdict::nonfinite}};
  bad.first = bad.findings[0];
  bad.requests[0].name = "\xff\x01";
  bad.provenance["device"] = "a | b\n::error::c";
  const Json rules = Json::parse(text_of(source_path("tools/schemas/check.schema.json")));
  const Json of_run = Json::parse(text_of(source_path("tools/schemas/result.schema.json")));
  for (const CheckResult& result : {compared(clean_run()), compared(bad)}) {
    const Json json = Json::parse(report_json(result));
    EXPECT_EQ(violation(json, rules, rules), "") << json.dump(2);
    EXPECT_EQ(violation(json["result"], of_run, of_run), "");
    Json wrong = json;
    wrong["notes"] = Json::array({{{"kind", "introduced"}, {"op_class", nullptr}, {"says", "x"}}});
    EXPECT_NE(violation(wrong, rules, rules), "");
    const Document document = document_of(result);
    EXPECT_NE(text_of(document, "csv").find("\nlinear,12,12,0,0.3,0.3,"), std::string::npos);
    const std::string annotations = annotations_of(result);
    EXPECT_EQ(annotations.find("\n::error::c"), std::string::npos) << annotations;
    EXPECT_TRUE(render_markdown(document).starts_with("### lockstep: " +
                                                      std::string(name_of(result.verdict))));
  }
}

}  // namespace
}  // namespace lockstep
