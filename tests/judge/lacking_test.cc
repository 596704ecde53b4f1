// What a trace lacks is no divergence, and no clean run either.
#include <fmt/format.h>

#include "tests/judge/judge_fixture.h"

namespace lockstep {
namespace {

// As a trace has it that does not say what a request found in the cache, and one that does.
TEST_F(JudgeTest, WhoBeginsLaterMustHaveInherited) {
  FakeRun run = clean();
  run.passes.erase(run.passes.begin());
  Result result = judged(run);
  expect_first(result, "embed", 1, 0, Verdict::structural);
  for (Pass& pass : run.passes) pass.info.inherited_known = false;
  result = judged(run);
  EXPECT_EQ(result.verdict, "inconclusive") << result.story;
  EXPECT_TRUE(result.findings.empty()) << result.story;
  run.passes[1].info.rows[0].row.position += 1;  // not where it begins
  EXPECT_EQ(judged(run).verdict, "diverged");
}

TEST_F(JudgeTest, ChoicesMustHaveLogits) {
  const FakeRun whole = clean();
  const auto without_logits = [&](size_t pass) {
    FakeRun run = whole;
    run.passes[pass].info.logit_rows.clear();
    std::erase_if(run.passes[pass].tensors, [](const KeptTensor& t) {
      return t.point->name == "logits" || t.point->name == "token";
    });
    return run;
  };
  for (size_t pass = 0; pass < 3; ++pass) {
    FakeRun run = without_logits(pass);
    const Result result = judged(run);
    EXPECT_EQ(result.verdict, "inconclusive") << result.story;
    EXPECT_NE(result.story.find(fmt::format("token {} of request 0, at position {}, was chosen by "
                                            "logits that the trace does not have",
                                            pass, 13 + pass)),
              std::string::npos)
        << result.story;
    EXPECT_EQ(judged(run, true, {}, false).story.find("was chosen by logits"), std::string::npos);
    for (RequestInfo& request : run.requests) request.forced = request.tokens;
    EXPECT_EQ(judged(run).verdict, "clean") << "what was forced was not chosen";
  }
  FakeRun run = whole;
  run.requests[1].id = 7;
  EXPECT_NE(judged(run).story.find("request 1 was to be fed is not known"), std::string::npos);
  EXPECT_EQ(judged(run).verdict, "inconclusive");
}

TEST_F(JudgeTest, WhatARequestNamesMustBeWhatWasFedAndChosen) {
  const auto expect_rule = [&](const char* place, int pass, const std::string& rule, auto change) {
    FakeRun run = clean();
    change(run.requests[0]);
    const Result result = judged(run);
    expect_first(result, place, pass, 0, Verdict::structural);
    EXPECT_EQ(result.findings.size(), 1u);
    EXPECT_NE(result.story.find(rule), std::string::npos) << result.story;
  };
  expect_rule("embed", 1, "was fed, but the request names", [](RequestInfo& r) { ++r.tokens[0]; });
  expect_rule("token", 2, "was chosen, but the request names",
              [](RequestInfo& r) { ++r.tokens[2]; });
  expect_rule("token", 1, "as the most likely one", [](RequestInfo& r) { ++r.argmax[1]; });
}

TEST_F(JudgeTest, PointsThatNoPassShowsWereNotRecorded) {
  const auto lacking = [&](const std::string& name, int but_in = -1) {
    FakeRun run = clean();
    for (int i = 0; i < std::ssize(run.passes); ++i)
      if (i != but_in)
        std::erase_if(run.passes[static_cast<size_t>(i)].tensors,
                      [&](const KeptTensor& t) { return t.point->name == name; });
    return judged(run);
  };
  for (const std::string name : {"embed", "attn.q_norm", "attn.kv", "mlp.down", "token"}) {
    const Result result = lacking(name);
    EXPECT_EQ(result.verdict, "inconclusive") << result.story;
    EXPECT_TRUE(result.findings.empty()) << result.story;
    bool said = false;
    for (const std::string& note : result.notes)
      said = said || note.find("the trace has no tensor of " + name) != std::string::npos;
    EXPECT_TRUE(said) << name;
  }
  // Shown later, it should have been there before.
  const Result result = lacking("mlp.down", 2);
  expect_first(result, "layer 0 mlp.down", 0, 0, Verdict::structural);
  EXPECT_EQ(count(result, Verdict::structural), 2 * 2 * 2);
  for (const std::string& note : result.notes)
    EXPECT_EQ(note.find("no tensor of mlp.down"), std::string::npos) << note;
}

TEST_F(JudgeTest, TheInputsOfOneOpAreNoDivergence) {
  FakeRun run = clean();
  run.manifest.provenance["before"] = "layer 1 mlp.act, pass 1";
  run.passes = {run.passes[1]};
  std::erase_if(run.passes[0].tensors, [](const KeptTensor& t) {
    return t.layer != 1 || (t.point->name != "mlp.gate" && t.point->name != "mlp.up");
  });
  run.passes[0].info.inherited_known = false;
  const Result result = judged(run);
  EXPECT_EQ(result.verdict, "inconclusive") << result.story;
  EXPECT_EQ(result.judged, 0);
}

}  // namespace
}  // namespace lockstep
