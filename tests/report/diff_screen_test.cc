// The screen of a diff: who computed the two, where they are apart, and what is not known.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/report/diff_origin.h"
#include "src/report/output.h"
#include "src/report/report.h"
#include "tests/diff/diff_runs.h"

namespace lockstep {
namespace {

using Lines = std::vector<std::string>;

TEST(DiffOrigin, SaysOfTheSecondWhatIsDifferent) {
  DiffResult r;
  EXPECT_TRUE(origins_of(r).empty());
  r.trace_a = "base.trace", r.trace_b = "bug.trace";
  r.provenance_a = {{"git_sha", "ca66f54aaaa"},
                    {"created_utc", "2026-11-23T10:00:00Z"},
                    {"git_dirty", "1"},
                    {"compute_dtype", "bf16"},
                    {"device", "cpu"},
                    {"matmul", "oneDNN"},
                    {"threads", "2"},
                    {"page_size", "16"},
                    {"chunk", "0"},
                    {"command_line", "lockstep run --trace base.trace"}};
  r.provenance_b = r.provenance_a;
  EXPECT_EQ(
      origins_of(r),
      (Lines{"A base.trace  ca66f54+ 2026-11-23  bf16 cpu oneDNN  threads 2  page 16  chunk 0",
             "B bug.trace  the same"}));
  r.provenance_a["prompt_xxh3"] = "1", r.provenance_b["prompt_xxh3"] = "2";
  EXPECT_EQ(origins_of(r)[1], "B bug.trace  the same but other prompts, or in another order");
  r.provenance_b["prompt_xxh3"] = "1";
  r.provenance_b["threads"] = "1";
  r.provenance_b["git_dirty"] = "0";
  r.provenance_b["command_line"] =
      "lockstep run --trace bug.trace --threads 1 --fault rope@layer=3";
  EXPECT_EQ(origins_of(r)[1],
            "B bug.trace  ca66f54 2026-11-23  the same but threads 1 (not 2), --fault "
            "rope@layer=3");
}

TEST(DiffOrigin, ReadsOptions) {
  EXPECT_EQ(other_options("x --a 1 --b --c=2", "x --a 1 --c=3 --d 4 5 --trace T"),
            (Lines{"--c 3", "--d 4 5", "no --b"}));
  EXPECT_EQ(other_options("x run -m A --seed 1 -q", "x run --seed 1 -v -n 3 -p 'a --seed 2'"),
            Lines{"--max-new 3"});
  EXPECT_TRUE(other_options("", "").empty());
}

DiffResult of_a_bug(bool data) {
  FakeRun a = run_of(), b = run_of(DType::bf16, spoil_at("mlp.up", 1, [](std::vector<double>&v) {
                                     for (double& x : v) x *= 1.5;
                                   }));
  for (FakeRun* run : {&a, &b})
    for (Pass& pass : run->passes)
      for (RecordedTensor& t : pass.tensors)
        if (!data) t.data = {};
  return diff_of(a, b);
}

TEST(DiffScreen, MarksTheFirstBeyondNoise) {
  const std::string screen = text_of(document_of(of_a_bug(true)), "table");
  EXPECT_NE(screen.find(" ulps nrm   q   k   v"), std::string::npos) << screen;
  EXPECT_NE(screen.find("\n    0   =   ="), std::string::npos) << screen;
  EXPECT_NE(screen.find("  = ["), std::string::npos) << screen;
  EXPECT_NE(screen.find("[ ] first beyond noise"), std::string::npos) << screen;
  EXPECT_EQ(screen.find('#'), std::string::npos) << screen;
  const std::string last = screen.substr(screen.rfind('\n', screen.size() - 2) + 1);
  EXPECT_EQ(last.find("different: layer 1 mlp.up, request "), 0u) << last;
}

TEST(DiffScreen, ShowsNoZeroForWhatWasNotMeasured) {
  const DiffResult r = of_a_bug(false);
  const std::string screen = text_of(document_of(r), "table");
  EXPECT_NE(screen.find("[#]"), std::string::npos) << screen;
  EXPECT_NE(screen.find("# other hashes, no numbers"), std::string::npos) << screen;
  const auto report = nlohmann::json::parse(report_json(r));
  for (const auto& point : report["points"])
    for (const char* number : {"difference_rms", "rms", "ulps"})
      EXPECT_TRUE(point[number].is_null()) << point;
  EXPECT_NE(text_of(document_of(r), "csv").find(",0,,,\n"), std::string::npos);
}

TEST(DiffScreen, MarksWhatNoNumberMeasures) {
  const DiffResult r = diff_of(
      run_of(), run_of(DType::bf16, spoil_at("mlp.up", 1, [](auto& v) { v[0] = std::nan(""); })));
  const std::string screen = text_of(document_of(r), "table");
  EXPECT_NE(screen.find("[!]"), std::string::npos) << screen;
  EXPECT_NE(screen.find("! NaN in one only, or another shape"), std::string::npos) << screen;
}

TEST(DiffScreen, FailsTheTestOfTheOpWhereTheDifferenceBegins) {
  const auto outcomes = [](const DiffResult& r) {
    std::map<std::string, TestCase::Outcome> by_name;
    for (const TestCase& test : tests_of(r).cases) by_name[test.name] = test.outcome;
    return by_name;
  };
  DiffResult bug = of_a_bug(true);
  bug.trace_a = "runs/base.trace", bug.trace_b = "bug.trace/";
  EXPECT_EQ(tests_of(bug).name, "bug.trace beside base.trace");
  for (const auto& [name, outcome] : outcomes(bug))
    EXPECT_EQ(outcome, name == "linear" ? TestCase::Outcome::failed : TestCase::Outcome::passed)
        << name;
  // What no op shows fails too: other requests, or a trace that is judged wrong.
  bug.first_kind.reset();
  EXPECT_EQ(outcomes(bug).at("structure"), TestCase::Outcome::failed);
  bug.verdict = DiffResult::Verdict::inconclusive;
  for (const auto& [name, outcome] : outcomes(bug))
    EXPECT_EQ(outcome, name == "coverage" ? TestCase::Outcome::trouble : TestCase::Outcome::passed)
        << name;
  bug.verdict = DiffResult::Verdict::noise;
  for (const auto& [name, outcome] : outcomes(bug))
    EXPECT_EQ(outcome, TestCase::Outcome::passed) << name;
}

TEST(DiffScreen, LongSentencesHangBelowTheirBeginnings) {
  DiffResult r = of_a_bug(true);
  r.structure = {std::string(200, 'x') + " " + std::string(60, 'y')};
  r.flips = std::vector<DiffResult::Flip>(
      6, {.cause = DiffResult::Flip::Cause::near_tie, .margin_ulp = 0.4});
  std::istringstream lines(text_of(document_of(r), "table"));
  std::string last;
  for (std::string line, before; std::getline(lines, line); before = line) {
    last = line;
    if (lines.peek() != EOF) {
      EXPECT_LE(line.size(), 80u) << line;
    }
    if (before.starts_with("tokens  ") && !line.starts_with("tokens  ")) {
      EXPECT_TRUE(line.starts_with("        ")) << line;
    }
  }
  EXPECT_TRUE(last.starts_with("different: ")) << "scripts read it whole";
}

TEST(DiffScreen, LayersThatLookAlikeShareARow) {
  const std::string screen = text_of(
      document_of(diff_of(
          run_of(), run_of(DType::bf16, spoil_at("logits", -1, [](auto& v) { v[0] += 100; })))),
      "table");
  EXPECT_NE(screen.find("\n  0-1   ="), std::string::npos) << screen;
  EXPECT_NE(screen.find("logits ["), std::string::npos) << screen;
}

TEST(DiffScreen, SaysWhereARequestLeavesAndWhatToDo) {
  DiffResult r = of_a_bug(true);
  r.trace_a = "base.trace";
  r.flips = {{.cause = DiffResult::Flip::Cause::near_tie,
              .request = 2,
              .position = 7,
              .token_a = 331,
              .token_b = 332,
              .margin_ulp = 0.4}};
  std::istringstream screen(text_of(document_of(r), "table"));
  std::string text;  // a screen breaks the line, and the rest hangs
  for (std::string word; screen >> word;) text += word + " ";
  EXPECT_NE(text.find("tokens request 2 leaves at position 7 (331 / 332, margin 0.4 ulp): not "
                      "compared from there; --force-from base.trace compares on"),
            std::string::npos)
      << text;
  r.verdict = DiffResult::Verdict::inconclusive;
  EXPECT_NE(text_of(document_of(r), "table").find("\ncannot tell: "), std::string::npos);
  const auto flip = nlohmann::json::parse(report_json(r))["flips"].at(0);
  EXPECT_EQ(flip["cause"], "near_tie");
  EXPECT_EQ(flip["margin_ulp"], 0.4);
}

}  // namespace
}  // namespace lockstep
