// What a trace lacks is no divergence, and no clean run either.
#include <fmt/format.h>

#include <numeric>

#include "src/judge/pass_view.h"
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
  EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
  EXPECT_TRUE(result.findings.empty()) << result.story;
  run.passes[1].info.rows[0].row.position += 1;  // not where it begins
  EXPECT_EQ(judged(run).verdict, RunVerdict::diverged);
}

// Of what was in the cache nobody tells, and the lists hold what was fed and chosen since: their
// positions are not those of the request.
TEST_F(JudgeTest, ListsThatBeginWithWhatWasFedAreHeldToNothing) {
  FakeRun run = clean();
  run.passes.erase(run.passes.begin());
  for (Pass& pass : run.passes) pass.info.inherited_known = false;
  for (RequestInfo& info : run.requests) {
    info.prompt = {info.tokens.at(0)};
    info.tokens.erase(info.tokens.begin());
    info.argmax = {};
  }
  const Result result = judged(run);
  EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
  EXPECT_TRUE(result.findings.empty()) << result.story;
  for (Pass& pass : run.passes) pass.info.inherited_known = true;
  EXPECT_EQ(judged(run).verdict, RunVerdict::diverged);
}

TEST_F(JudgeTest, ChoicesMustHaveLogits) {
  const FakeRun whole = clean();
  const auto without_logits = [&](size_t pass) {
    FakeRun run = whole;
    run.passes[pass].info.logit_rows.clear();
    std::erase_if(run.passes[pass].tensors, [](const RecordedTensor& t) {
      return t.point->name == "logits" || t.point->name == "token";
    });
    return run;
  };
  for (size_t pass = 0; pass < 3; ++pass) {
    FakeRun run = without_logits(pass);
    const Result result = judged(run);
    EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
    EXPECT_NE(result.story.find(fmt::format("token {} of request 0, at position {}, was chosen by "
                                            "logits that the trace does not have",
                                            pass, 13 + pass)),
              std::string::npos)
        << result.story;
    EXPECT_EQ(judged(run, true, {}, false).story.find("was chosen by logits"), std::string::npos);
    for (RequestInfo& request : run.requests) request.forced = request.tokens;
    EXPECT_EQ(judged(run).verdict, RunVerdict::clean) << "what was forced was not chosen";
  }
  FakeRun run = whole;
  run.requests[1].id = 7;
  EXPECT_NE(judged(run).story.find("request 1 was to be fed is not known"), std::string::npos);
  EXPECT_EQ(judged(run).verdict, RunVerdict::inconclusive);
  // Where nobody says what was to be fed, a row before the first logits may be of the prompt.
  for (size_t pass = 0; pass < 3; ++pass) {
    run = without_logits(pass);
    run.requests.clear();
    const Result result = judged(run);
    EXPECT_EQ(result.verdict, pass == 1 ? RunVerdict::inconclusive : RunVerdict::clean);
    EXPECT_EQ(result.story.find("the token of request 0 at position 14 was chosen by logits that "
                                "the trace does not have") == std::string::npos,
              pass != 1)
        << result.story;
  }
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

TEST_F(JudgeTest, WhatARequestNamesMustBeAllThatWasChosen) {
  const auto expect_rule = [&](int pass, const std::string& rule, auto change) {
    FakeRun run = clean();
    change(run.requests[0]);
    const Result result = judged(run);
    expect_first(result, "token", pass, 0, Verdict::structural);
    EXPECT_NE(result.story.find(rule), std::string::npos) << result.story;
  };
  expect_rule(2, "the request names only 2 tokens", [](RequestInfo& r) { r.tokens.pop_back(); });
  expect_rule(0, "the request names only 0 tokens", [](RequestInfo& r) { r.tokens.clear(); });
  expect_rule(2, "names only 2 most likely ones", [](RequestInfo& r) { r.argmax.pop_back(); });
  expect_rule(2, "which is none of the", [](RequestInfo& r) { r.tokens[2] = 1 << 24; });
  expect_rule(2, "which is none of the", [](RequestInfo& r) { r.tokens[2] = -1; });
  FakeRun run = clean();
  for (RequestInfo& request : run.requests) request.argmax.clear();
  EXPECT_EQ(judged(run).verdict, RunVerdict::clean)
      << "it may leave out which ones were the most likely";
  for (RequestInfo& request : run.requests) request.tokens.clear();
  EXPECT_EQ(judged(run).verdict, RunVerdict::clean) << "and say nothing of what it became";
}

const JudgeOptions kLogitsAlone{.selection = {"logits", "", "", ""}};

// The last choice of request 0 made another one, which the request names as the engine's.
FakeRun with_another_choice(FakeRun run) {
  Pass& pass = run.passes[2];
  RequestInfo& request = run.requests[0];
  const int32_t other = pass.logits[0].ids.back();
  for (RecordedTensor& tensor : pass.tensors)
    if (tensor.point->name == "token") tensor.data.as<int32_t>()[0] = other;
  pass.logits[0].chosen = request.tokens[2] = request.argmax[2] = other;
  return run;
}

// As an engine's trace has it of which nobody recorded the choices.
FakeRun without_choices(FakeRun run) {
  for (Pass& pass : run.passes) {
    std::erase_if(pass.tensors, [](const RecordedTensor& t) { return t.point->name == "token"; });
    for (TopLogits& top : pass.logits) top.chosen = -1;
  }
  return run;
}

TEST_F(JudgeTest, AChoiceIsHeldToLogitsThoughTheOpThatMadeItWasLeftOut) {
  const FakeRun run = with_another_choice(clean());
  const Result result = judged(run, true, kLogitsAlone);
  expect_first(result, "token", 2, 0, Verdict::structural);
  EXPECT_NE(result.story.find("was chosen, where the largest logit is that of token"),
            std::string::npos)
      << result.story;
  EXPECT_EQ(result.findings.size(), 1u);
  const std::vector<Flip>& flips = result.requests[0].flips;
  ASSERT_FALSE(flips.empty());
  EXPECT_EQ(flips.back().engine, run.requests[0].tokens[2]);
  EXPECT_EQ(flips.back().ancestor, "token");
  const Result before = judged(clean(), true, kLogitsAlone);
  EXPECT_EQ(before.verdict, RunVerdict::clean);
  EXPECT_EQ(result.logits->argmax_equal + 1, before.logits->argmax_equal);
}

TEST_F(JudgeTest, AChoiceThatNobodySawIsTheLargestLogit) {
  EXPECT_EQ(judged(without_choices(clean()), true, kLogitsAlone).verdict, RunVerdict::clean);
  FakeRun run = without_choices(with_another_choice(clean()));
  expect_first(judged(run, true, kLogitsAlone), "token", 2, 0, Verdict::structural);
  // As large as the largest, and so the choice of an engine as well as that one.
  TopLogits& top = run.passes[2].logits[0];
  std::ranges::fill(top.values, top.values[0]);
  for (const Finding& finding : judged(run, true, kLogitsAlone).findings)
    EXPECT_NE(text_of(finding.node.place), "token") << finding.rule;

  run = without_choices(clean());
  int32_t& fed = run.passes[1].info.rows[0].token;
  fed = run.requests[0].tokens[0] = run.passes[0].logits[0].ids.back();
  const Result result = judged(run, true, kLogitsAlone);
  expect_first(result, "embed", 1, 0, Verdict::structural);
  EXPECT_NE(result.story.find("was fed, but position 12 has the largest logit at token"),
            std::string::npos)
      << result.story;
  run.requests[0].sampled = true;
  EXPECT_TRUE(judged(run, true, kLogitsAlone).findings.empty()) << "it was drawn";
}

TEST_F(JudgeTest, ATokenThatNobodyChoseIsFoundThoughTheOpThatReadItWasLeftOut) {
  FakeRun run = clean();
  int32_t& fed = run.passes[2].info.rows[0].token;
  fed = fed == 0 ? 1 : fed - 1;
  const Result result = judged(run, true, {.selection = {"logits,token", "", "", ""}});
  expect_first(result, "embed", 2, 0, Verdict::structural);
  EXPECT_NE(result.story.find("was fed, but position 13 chose"), std::string::npos) << result.story;
}

// The rows of `embed` are then judged with the ops that read them; what was fed is known all the
// same.
TEST_F(JudgeTest, WhatWasFedIsJudgedThoughTheOpThatReadItWasNotRecorded) {
  const auto has = [](const Place& place) { return place.point->name != "embed"; };
  const auto without_embed = [&](FakeRun run) {
    for (Pass& pass : run.passes)
      std::erase_if(pass.tensors, [](const RecordedTensor& t) { return t.point->name == "embed"; });
    return run;
  };
  const FakeRun right = without_embed(clean());
  EXPECT_EQ(judged(right, true, {.recorded = has}).verdict, RunVerdict::clean);
  FakeRun run = right;
  run.requests[0].prompt[5] += 1;
  Result result = judged(run, true, {.recorded = has});
  expect_first(result, "embed", 0, 0, Verdict::structural);
  EXPECT_NE(result.story.find("was fed, but the prompt has token"), std::string::npos)
      << result.story;
  run = right;
  run.requests[1].forced = run.requests[1].tokens;
  run.requests[1].forced[1] += 1;
  expect_first(judged(run, true, {.recorded = has}), "embed", 2, 1, Verdict::structural);
  // A pass that is not there, so that positions do not follow one another.
  run = right;
  run.passes.erase(run.passes.begin());
  result = judged(run, false, {.recorded = has});
  expect_first(result, "embed", 1, 0, Verdict::structural);
  EXPECT_NE(result.story.find("was next, found"), std::string::npos) << result.story;
  for (Pass& pass : run.passes) pass.info.inherited_known = false;
  result = judged(run, false, {.recorded = has});
  EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
  EXPECT_TRUE(result.findings.empty()) << result.story;
}

TEST_F(JudgeTest, DrawsThatATraceDoesNotTellOfAreSaidToBeTakenAsGiven) {
  const auto noted = [](const Result& result) {
    return std::ranges::any_of(result.notes, [](const std::string& note) {
      return note.starts_with("3 of 3 drawn tokens are taken as given: ");
    });
  };
  FakeRun run = clean();
  EXPECT_FALSE(noted(judged(run)));
  run.requests[0].sampled = true;
  EXPECT_TRUE(noted(judged(run)));
}

// What was fed is the choice of the tensor, whatever /logits says of it.
TEST_F(JudgeTest, TokensThatDifferAreThoseOfTheTensor) {
  FakeRun run = clean();
  const Result right = judged(run);
  run.passes[1].logits[0].chosen = run.passes[1].logits[0].ids.back();
  const Result result = judged(run);
  expect_first(result, "token", 1, 0, Verdict::structural);
  EXPECT_EQ(result.logits->argmax_equal, right.logits->argmax_equal);
}

// What was asked for and what was judged are counted against each other.
TEST_F(JudgeTest, WhatWasAskedForAndNotServedIsUndecided) {
  const auto expect_doubt = [&](const std::string& why, auto change) {
    FakeRun run = clean();
    change(run);
    const Result result = judged(run);
    EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
    EXPECT_EQ(exit_status(result), 2);
    EXPECT_TRUE(result.findings.empty()) << result.story;
    EXPECT_NE(result.story.find("requests were not served as they ask: " + why), std::string::npos)
        << result.story;
  };
  expect_doubt("request 7 is in no pass", [](FakeRun& run) {
    run.requests.push_back({.id = 7, .prompt = run.requests[0].prompt});
  });
  expect_doubt("of the prompt of request 0, ", [](FakeRun& run) {
    RequestInfo& request = run.requests[0];
    run.passes.resize(1);
    for (RequestInfo& of : run.requests) of.tokens.resize(1), of.argmax.resize(1);
    request.prompt.insert(request.prompt.end(), {1, 2});
    request.tokens = request.argmax = {};
  });
  expect_doubt("request 1 has 3 of the 4 tokens that it asks for, and nothing ended it",
               [](FakeRun& run) {
                 for (RequestInfo& of : run.requests) of.max_new = 3 + of.id;
               });
  expect_doubt("request 0 has 3 tokens, and asks for no more than 2", [](FakeRun& run) {
    for (RequestInfo& of : run.requests) of.max_new = 2 + of.id;
  });
  FakeRun run = clean();
  for (RequestInfo& of : run.requests) of.max_new = 3;
  EXPECT_EQ(judged(run).verdict, RunVerdict::clean);
  RequestInfo fork = run.requests[0];
  fork.id = 7;
  fork.max_new = 1;
  fork.tokens.resize(1), fork.argmax.resize(1);
  run.requests.push_back(fork);
  EXPECT_EQ(judged(run).verdict, RunVerdict::clean) << "its one token is of a row that both share";
  for (RequestInfo& of : run.requests) of.max_new = 9, of.stopped = true;
  EXPECT_EQ(judged(run).verdict, RunVerdict::clean) << "an end token came before";
}

TEST_F(JudgeTest, WhatIsInheritedIsNotComputedToo) {
  FakeRun run = clean();
  run.passes[1].info.inherited.push_back({0, run.requests[0].prompt});
  EXPECT_EQ(judged(run).verdict, RunVerdict::clean);
  run.passes[1].info.inherited[0].tokens.push_back(run.passes[1].info.rows[0].token);
  expect_first(judged(run), "embed", 1, 0, Verdict::structural);
}

// What /logits says, made other than the tensors have it, one thing at a time.
TEST_F(JudgeTest, TheBestOfLogitsMustBeThoseOfTheTensors) {
  const auto expect_rule = [&](const char* place, const std::string& rule, auto change) {
    FakeRun run = clean();
    change(run.passes[1]);
    const Result result = judged(run);
    expect_first(result, place, 1, 0, Verdict::structural);
    EXPECT_NE(result.story.find(rule), std::string::npos) << result.story;
  };
  expect_rule("logits", "number 2 of the most likely tokens",
              [](Pass& pass) { pass.logits[0].ids[1] = 1000; });
  expect_rule("logits", "number 1 of the most likely tokens",
              [](Pass& pass) { pass.logits[0].values[0] += 1; });
  expect_rule("logits", " of this row more than once", [](Pass& pass) {
    pass.logits[0].ids[2] = pass.logits[0].ids[1];
    pass.logits[0].values[2] = pass.logits[0].values[1];
  });
  expect_rule("logits", "names 7 tokens of this row, wanted 8", [](Pass& pass) {
    pass.logits[0].ids.pop_back();
    pass.logits[0].values.pop_back();
  });
  expect_rule("token", "/logits says that token", [](Pass& pass) { ++pass.logits[0].chosen; });
  expect_rule("logits", "this row 0 times", [](Pass& pass) { pass.logits.clear(); });
  expect_rule("logits", "this row 2 times",
              [](Pass& pass) { pass.logits.push_back(pass.logits[0]); });
  expect_rule("logits", "this row 0 times", [](Pass& pass) { pass.logits[0].row.position += 1; });
}

bool notes(const Result& result, const std::string& words) {
  return std::ranges::any_of(
      result.notes, [&](const std::string& note) { return note.find(words) != std::string::npos; });
}

// A trace that begins at decode: who computed the prompt is not in it, and what it put into the
// cache is.
TEST_F(JudgeTest, WhatWasInTheCacheBeforeIsTakenAsGivenAndHeldToIt) {
  FakeRun run = clean();
  run.passes.erase(run.passes.begin());
  for (RequestInfo& request : run.requests) {
    run.passes[0].info.inherited.push_back({request.id, request.prompt});
    request.forced = {request.tokens[0]};
  }
  Result result = judged(run, false);
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  EXPECT_EQ(result.judged, result.expected);
  EXPECT_TRUE(notes(result, "positions 0 to 12 of request 0 were in the cache before"));
  EXPECT_TRUE(notes(result, "positions 0 to 8 of request 1 were in the cache before"));
  EXPECT_TRUE(std::ranges::any_of(result.scope.given, [](const std::string& given) {
    return given.find("K and V of 22 positions") != std::string::npos;
  }));

  // In the next pass another position of the same is read.
  const auto caches = [&](Pass& pass) {
    return std::ranges::find_if(pass.tensors, [](const RecordedTensor& t) {
      return t.point->is_cache() && t.layer == 1 && t.rows.front().request == 1;
    });
  };
  RecordedTensor& kv = *caches(run.passes[1]);
  const TensorView data = kv.data;
  std::swap_ranges(data.as<uint16_t>() + 2 * data.row_size(),
                   data.as<uint16_t>() + 3 * data.row_size(),
                   data.as<uint16_t>() + 5 * data.row_size());
  kv.row_hashes = row_hashes_of(kv.data);
  result = judged(run, false);
  expect_first(result, "layer 1 attn.kv", 2, 1, Verdict::introduced);
  EXPECT_EQ(result.first->position, 2);

  // Where it is not declared, nothing was in the cache.
  for (Pass& pass : run.passes) pass.info.inherited_known = true, pass.info.inherited.clear();
  EXPECT_EQ(judged(run, false).verdict, RunVerdict::diverged);
}

TEST_F(JudgeTest, RowsThatEachPassComputesAgainAreSaid) {
  EXPECT_FALSE(notes(judged(clean()), "no cache is used"));
  FakeModel model(DType::bf16);
  FakeRun run = clean();
  run.passes.clear();
  run.requests.resize(1);
  RequestInfo& request = run.requests[0];
  request.tokens.clear(), request.argmax.clear();
  for (int step = 0; step < 3; ++step) {
    PassInfo info{.pass = step};
    std::vector<int32_t> all = request.prompt;
    all.insert(all.end(), request.tokens.begin(), request.tokens.end());
    for (int32_t p = 0; p < std::ssize(all); ++p)
      info.rows.push_back({{0, p}, all[static_cast<size_t>(p)], p, Phase::prefill});
    info.logit_rows = {static_cast<int32_t>(info.rows.size()) - 1};
    run.passes.push_back(pass_of(model, info));
    const RecordedTensor* token = run.passes.back().find(point("token"), -1);
    request.tokens.push_back(static_cast<int32_t>(value_at(token->data, 0)));
  }
  request.argmax = request.tokens;
  const Result result = judged(run);
  EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
  EXPECT_TRUE(notes(result,
                    "request 0 is computed again from position 0 in each of 2 passes after the "
                    "first: no cache is used"));
}

// Q, K and V read one norm that no pass has. Where Q is wrong by the norm, so are K and V; and
// whether V is wrong by itself too, nothing tells.
TEST_F(JudgeTest, AnOpBehindAWrongOneThatIsNotSeenIsNotSaidToBeRightByItself) {
  const auto has = [](const Place& place) { return place.point->name != "attn.norm"; };
  for (const bool twice : {false, true}) {
    FakeModel model(DType::bf16, [&](const Place& place, const PassInfo&, std::vector<double>& v) {
      const bool wrong = !has(place) || (twice && place.point->name == "attn.v");
      if (place.layer == 1 && wrong)
        for (double& x : v) x *= 1.5;
    });
    FakeRun run = fake_run(model, DType::bf16);
    for (Pass& pass : run.passes)
      std::erase_if(pass.tensors, [&](const RecordedTensor& t) {
        return !has({t.point, t.layer});
      });
    const Result result = judged(run, true, {.recorded = has});
    expect_first(result, "layer 1 attn.q", 0, 0, Verdict::introduced);
    EXPECT_EQ(count(result, Verdict::introduced), 6) << "two requests in three passes";
    EXPECT_EQ(count(result, Verdict::confounded), 12);
    EXPECT_EQ(result.judged, result.expected);
    for (const PlaceSummary& p : result.places) {
      const bool behind = p.place.layer == 1 &&
                          (p.place.point->name == "attn.k" || p.place.point->name == "attn.v");
      EXPECT_EQ(p.verdict == Verdict::confounded, behind) << text_of(p.place);
      EXPECT_TRUE(!behind || p.ancestor == "layer 1 attn.q") << p.ancestor;
    }
    EXPECT_NE(result.story.find("; 12 are wrong by it or by themselves, which cannot be told"),
              std::string::npos)
        << result.story;
    EXPECT_TRUE(notes(result, "whether it has one of its own cannot be told until that is right"));
  }
}

// Both q and v are wrong by themselves, as k shows where they are far off.
TEST_F(JudgeTest, AnOpThatIsWrongByItselfInSomeNodesIsNotSaidToBeUnclear) {
  const auto has = [](const Place& place) { return place.point->name != "attn.norm"; };
  FakeModel model(DType::bf16, [&](const Place& p, const PassInfo& pass, std::vector<double>& v) {
    if (p.layer != 1 || (p.point->name != "attn.q" && p.point->name != "attn.v")) return;
    for (double& x : v) x *= pass.pass == 0 ? 4 : 1.04;
  });
  FakeRun run = fake_run(model, DType::bf16);
  for (Pass& pass : run.passes)
    std::erase_if(pass.tensors, [&](const RecordedTensor& t) { return !has({t.point, t.layer}); });
  const Result result = judged(run, true, {.recorded = has});
  expect_first(result, "layer 1 attn.q", 0, 0, Verdict::introduced);
  const auto of_v = [](const Finding& f) { return f.node.place.point->name == "attn.v"; };
  EXPECT_EQ(std::ranges::count_if(result.findings, of_v), 2) << "in the first pass alone";
  EXPECT_GT(count(result, Verdict::confounded), 0);
  EXPECT_FALSE(notes(result, "whether it has one of its own cannot be told"));
}

// A fused add and norm reads a sum of which the trace has what was stored, and not the addends.
TEST_F(JudgeTest, ANormOfASumWhoseAddendsWereNotRecordedIsJudgedOnWhatWasStored) {
  const auto is_norm = [](const Place& place) { return place.point->name == "mlp.norm"; };
  const auto has = [](const Place& place) { return place.point->name != "attn.o"; };
  const auto result_of = [&](const Spoil& change) {
    FakeModel model(DType::bf16, change, [&](const Place& place) {
      return is_norm(place) ? RoundingContract::unrounded_sum : RoundingContract::fused;
    });
    FakeRun run = fake_run(model, DType::bf16);
    run.manifest.contracts["mlp.norm"] = RoundingContract::unrounded_sum;
    for (Pass& pass : run.passes)
      std::erase_if(pass.tensors, [&](const RecordedTensor& t) {
        return !has({t.point, t.layer});
      });
    return judged(run, false, {.recorded = has});
  };
  const Result right = result_of({});
  EXPECT_EQ(right.verdict, RunVerdict::clean) << right.story;
  EXPECT_EQ(right.judged, right.expected);
  const Result wrong = result_of([&](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (is_norm(p) && p.layer == 1) v[3] *= 1.25;
  });
  expect_first(wrong, "layer 1 mlp.norm", 0, 0, Verdict::introduced);
}

TEST_F(JudgeTest, PointsThatNoPassShowsWereNotRecorded) {
  const auto lacking = [&](const std::string& name, int but_in = -1) {
    FakeRun run = clean();
    for (int i = 0; i < std::ssize(run.passes); ++i)
      if (i != but_in)
        std::erase_if(run.passes[static_cast<size_t>(i)].tensors,
                      [&](const RecordedTensor& t) { return t.point->name == name; });
    return judged(run);
  };
  for (const std::string name : {"embed", "attn.q_norm", "attn.kv", "mlp.down", "token"}) {
    const Result result = lacking(name);
    EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
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
  std::erase_if(run.passes[0].tensors, [](const RecordedTensor& t) {
    return t.layer != 1 || (t.point->name != "mlp.gate" && t.point->name != "mlp.up");
  });
  run.passes[0].info.inherited_known = false;
  const Result result = judged(run);
  EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
  EXPECT_EQ(result.judged, 0);
}

// A token that is fed two hundred times is one observation of what its rows are off by.
TEST(RepeatedTokens, AreToldFromText) {
  const auto repeats = [](const std::vector<int32_t>& tokens) { return repeats_tokens(tokens); };
  EXPECT_FALSE(repeats({}));
  EXPECT_FALSE(repeats({7}));
  EXPECT_FALSE(repeats({7, 7, 7}));
  EXPECT_TRUE(repeats({7, 7, 7, 7}));
  EXPECT_FALSE(repeats({7, 7, 7, 8}));
  EXPECT_TRUE(repeats(std::vector<int32_t>(200, 7)));
  EXPECT_TRUE(repeats({1, 2, 1, 2, 1, 2, 1, 2}));
  std::vector<int32_t> text(100);
  std::iota(text.begin(), text.end(), 0);
  EXPECT_FALSE(repeats(text));
}

}  // namespace
}  // namespace lockstep
