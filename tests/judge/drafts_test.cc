// Speculative decoding: a pass feeds tokens that somebody guessed behind the last one, each gets
// logits, and those that are not what the row before them chose are computed again. Such a guess is
// no wrong token; one that stays though nobody chose it is.
#include "tests/judge/judge_fixture.h"

namespace lockstep {
namespace {

class DraftsTest : public JudgeTest {
 protected:
  // A request whose prompt is computed, and by which the rest of a run is made pass by pass.
  DraftsTest() {
    FakeModel model(DType::bf16);
    run_ = fake_run(model, DType::bf16, 0, {13});
    RequestInfo& request = run_.requests[0];
    request.tokens.clear(), request.argmax.clear();
    run_.manifest.requests = run_.requests;
    run_.passes.clear();
    feed(0, request.prompt, Phase::prefill, /*all_logits=*/false);
  }

  // A pass of these tokens from a position on; what its rows choose.
  const std::vector<int32_t>& feed(int32_t first, const std::vector<int32_t>& tokens,
                                   Phase phase = Phase::decode, bool all_logits = true) {
    PassInfo info{.pass = static_cast<int32_t>(run_.passes.size())};
    for (int32_t p = first; const int32_t token : tokens) {
      info.rows.push_back({{0, p}, token, p, phase});
      ++p;
    }
    for (int32_t i = all_logits ? 0 : static_cast<int32_t>(tokens.size()) - 1;
         i < std::ssize(tokens); ++i)
      info.logit_rows.push_back(i);
    run_.passes.push_back(pass_of(model_, info));
    const RecordedTensor* chosen = run_.passes.back().find(point("token"), -1);
    chosen_.clear();
    for (size_t i = 0; i < chosen->rows.size(); ++i)
      chosen_.push_back(static_cast<int32_t>(value_at(chosen->data, i)));
    return chosen_;
  }

  // What the last of these rows would choose, in a pass that is none of the run.
  int32_t next(int32_t first, const std::vector<int32_t>& tokens) {
    const int32_t token = feed(first, tokens).back();
    run_.passes.pop_back();
    return token;
  }

  static int32_t other(int32_t token) { return (token + 1) % static_cast<int32_t>(kVocab); }

  // Names the tokens of the request, of which these were fed and the last was only chosen.
  void name(std::vector<int32_t> tokens) {
    run_.requests[0].tokens = run_.requests[0].argmax = std::move(tokens);
  }

  void expect_clean() {
    const Result result = judged(run_);
    EXPECT_EQ(result.verdict, RunVerdict::clean) << result.story;
    EXPECT_EQ(result.findings.size(), 0u);
  }

  void expect_wrong_at(int32_t position, int pass) {
    const Result result = judged(run_);
    expect_first(result, "embed", pass, 0, Verdict::structural);
    EXPECT_EQ(result.first->position, position) << result.story;
  }

  // The rest of the run is the same in all tests: a draft that is refused at position 14, drafts
  // that are taken, and one that is refused at the end. Its tokens, from position 13 on.
  std::vector<int32_t> speculate() {
    const int32_t a = chosen_[0], b = next(13, {a});
    feed(13, {a, other(b), 3});
    const int32_t c = next(14, {b});
    feed(14, {b, other(c), 5});
    const int32_t d = next(15, {c}), e = next(15, {c, d});
    feed(15, {c, d, other(e)});
    return {a, b, c, d, e};
  }

  FakeRun run_;
  FakeModel model_{DType::bf16};
  std::vector<int32_t> chosen_;
};

TEST_F(DraftsTest, ThatAreRefusedAreNoWrongTokens) {
  name(speculate());
  expect_clean();
}

// Of a run that was cut off nobody says what its requests became.
TEST_F(DraftsTest, ThatAreRefusedAreNoWrongTokensWhereNobodyNamesThem) {
  speculate();
  expect_clean();
}

TEST_F(DraftsTest, ThatEndBeforeAllWereUsedAreNoWrongTokens) {
  std::vector<int32_t> tokens = speculate();
  tokens.pop_back();  // it asked for no more, though the last pass chose one
  name(tokens);
  expect_clean();
}

TEST_F(DraftsTest, ThatStayThoughNobodyChoseThemAreFound) {
  const int32_t a = chosen_[0], b = next(13, {a});
  const int32_t c = feed(13, {a, other(b)})[1];
  feed(15, {c});
  expect_wrong_at(14, 1);
}

TEST_F(DraftsTest, OfTheLastPassThatTheRequestNamesAreFound) {
  std::vector<int32_t> tokens = speculate();
  tokens.back() = other(tokens.back());
  tokens.push_back(chosen_[2]);
  name(tokens);
  expect_wrong_at(17, 3);
}

// A later turn makes all before it a prompt, refused drafts included.
TEST_F(DraftsTest, BeforeAPromptGoesOnAreNoWrongTokens) {
  const int32_t a = chosen_[0], b = next(13, {a});
  feed(13, {a, other(b), 3});
  feed(14, {b});
  feed(15, {5, 6, 7}, Phase::prefill, /*all_logits=*/false);
  std::vector<int32_t>& prompt = run_.requests[0].prompt;
  for (const int32_t token : {a, b, 5, 6, 7}) prompt.push_back(token);
  name(chosen_);
  expect_clean();
}

// A request that lost its pages computes its positions again, some at a time.
TEST_F(DraftsTest, ThatStayAndAreComputedAgainInChunksAreNoWrongTokens) {
  const int32_t a = chosen_[0], b = next(13, {a}), c = next(13, {a, b});
  const int32_t d = feed(13, {a, b, c}).back();
  std::vector<int32_t> all = run_.requests[0].prompt;
  for (const int32_t token : {a, b, c, d}) all.push_back(token);
  feed(0, {all.begin(), all.begin() + 9}, Phase::prefill, /*all_logits=*/false);
  const int32_t e = feed(9, {all.begin() + 9, all.end()}, Phase::prefill, false)[0];
  name({a, b, c, d, e});
  expect_clean();
}

TEST_F(DraftsTest, AreNotWhatWasForced) {
  const int32_t a = chosen_[0], b = other(next(13, {a}));
  feed(13, {a, b});
  run_.requests[0].forced = {a, other(b)};
  name(run_.requests[0].forced);
  expect_wrong_at(14, 1);
}

// Whoever computes all positions in each pass has known for long what was chosen.
TEST_F(DraftsTest, AreNotWhatIsFedAgain) {
  std::vector<int32_t> all = run_.requests[0].prompt;
  run_.passes.clear();
  all.push_back(feed(0, all).back());
  std::vector<int32_t> wrong = all;
  wrong[13] = other(wrong[13]);
  feed(0, wrong);
  feed(0, all);
  expect_wrong_at(13, 1);
}

// Logits of all rows make nothing a guess that stands in a prompt.
TEST_F(DraftsTest, AreNotWhatIsWrongInAPrompt) {
  std::vector<int32_t> all = run_.requests[0].prompt, wrong = all;
  run_.passes.clear();
  wrong[9] = other(wrong[9]);
  feed(0, {wrong.begin(), wrong.begin() + 6}, Phase::prefill);
  feed(6, {wrong.begin() + 6, wrong.end()}, Phase::prefill);
  feed(0, all, Phase::prefill);
  expect_wrong_at(9, 1);
}

// Nor does it that its first row is of a token that was chosen.
TEST_F(DraftsTest, AreNotWhatIsWrongInATurnBehindAnAnswer) {
  const int32_t a = chosen_[0];
  feed(13, {a, 5, 6, 8}, Phase::prefill);
  feed(15, {6, 7}, Phase::prefill);
  for (const int32_t token : {a, 5, 6, 7}) run_.requests[0].prompt.push_back(token);
  name({chosen_.back()});
  expect_wrong_at(16, 1);
}

TEST_F(DraftsTest, AreNotWhatWasForcedAndIsReplaced) {
  const std::vector<int32_t> forced = {3, 4, 5};
  run_.passes.clear();
  std::vector<int32_t> all = run_.requests[0].prompt;
  for (const int32_t token : {3, 4, 6}) all.push_back(token);
  feed(0, all, Phase::prefill);
  feed(15, {5});
  run_.requests[0].forced = forced;
  name({3, 4, 5, chosen_[0]});
  expect_wrong_at(15, 0);
}

// Of a request that lost its pages: the right draft is what stays, and the wrong one stands out.
TEST_F(DraftsTest, AreNotWhatIsComputedAgainWrongly) {
  const int32_t a = chosen_[0], b = next(13, {a});
  feed(13, {a, b});
  std::vector<int32_t>& prompt = run_.requests[0].prompt;
  for (const int32_t token : {a, other(b)}) prompt.push_back(token);
  feed(0, prompt, Phase::prefill, /*all_logits=*/false);
  name(chosen_);
  expect_wrong_at(14, 1);
}

// A second answer to the same prompt.
TEST_F(DraftsTest, BehindAPromptThatIsFedAgainAreNoWrongTokens) {
  speculate();
  feed(12, {run_.requests[0].prompt.back()});
  name(speculate());
  expect_clean();
}

}  // namespace
}  // namespace lockstep
