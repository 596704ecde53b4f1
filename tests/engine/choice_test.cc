// The engine's use of its logits: which token is fed next, and when a text ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tests/fixtures.h"

namespace lockstep {
namespace {

using Ids = std::vector<int32_t>;

class ChoiceTest : public testing::Test {
 protected:
  static const Checkpoint& bard() {
    static const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
    return checkpoint;
  }
  static Request request(uint64_t seed, const Sampling& sampling) {
    Request r{.prompt = some_tokens(5 + static_cast<int64_t>(seed) * 6, 4096, seed), .max_new = 8};
    r.sampling = sampling;
    r.sampling.seed = seed;
    return r;
  }
  static std::vector<Request> sampled_requests() {
    return {request(1, {.temperature = 1}), request(2, {.temperature = 0.8, .top_k = 50}),
            request(3, {.temperature = 1.5, .top_p = 0.9, .min_p = 0.01}),
            request(4, {.temperature = 1, .repetition_penalty = 1.3}),
            request(5, {.repetition_penalty = 1.3})};
  }
  static Ids chosen(const Sequence& s) {
    return {s.tokens.begin() + std::ssize(s.request.prompt), s.tokens.end()};
  }
  static Ids alone(const Request& r) {
    return chosen(serve_for_tokens(bard(), {.dtype = DType::f32}, {r}).sequences[0]);
  }
};

EngineOptions random_options(uint64_t seed) {
  std::mt19937_64 random(seed);
  EngineOptions options{.dtype = DType::f32, .random_schedule_seed = seed};
  options.page_size = int64_t{1} << (random() % 5);
  options.chunk = static_cast<int64_t>(random() % 3) * 4;
  options.max_batched_tokens = static_cast<int64_t>(random() % 3) * 9;
  options.max_batch = static_cast<int64_t>(random() % 4);
  options.prefix_cache = random() % 2 == 0;
  options.preempt = random() % 2 == 0 ? Preempt::swap : Preempt::recompute;
  options.threads = 1 + static_cast<int>(random() % 2);
  options.pages = 80 / options.page_size + 2;
  return options;
}

TEST_F(ChoiceTest, ASeedGivesTheSameTokensInWhateverCompany) {
  const std::vector<Request> requests = sampled_requests();
  std::vector<Ids> want;
  for (const Request& r : requests) want.push_back(alone(r));
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    const Served served = serve_for_tokens(bard(), random_options(seed), requests);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(chosen(served.sequences[i]), want[i]) << "request " << i << ", schedule " << seed;
  }
  std::vector<Request> reseeded = requests;
  reseeded[0].sampling.seed = 99;
  EXPECT_NE(alone(reseeded[0]), want[0]);
}

TEST_F(ChoiceTest, TheArgmaxIsKeptBesideWhatIsFed) {
  const Request r = request(1, {.temperature = 2});
  const Served served = serve(bard(), {.dtype = DType::f32}, {r});
  const Sequence& s = served.sequences[0];
  const Ids tokens = chosen(s);
  ASSERT_EQ(served.passes.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    const Pass& pass = served.passes[i];
    EXPECT_EQ(s.argmax[i], value_at(pass.find(point("token"), -1)->data, 0));
    const std::span text(s.tokens.data(), r.prompt.size() + i);
    EXPECT_EQ(tokens[i], choose(pass.find(point("logits"), -1)->data, r.sampling, text, {i, 0}));
    if (i > 0) {
      EXPECT_EQ(pass.info.rows[0].token, tokens[i - 1]);
    }
  }
  EXPECT_NE(tokens, s.argmax) << "at this temperature nothing follows the argmax";
}

TEST_F(ChoiceTest, SamplesOfAPromptComputeItOnceAndEachGoesItsOwnWay) {
  Request r = request(3, {.temperature = 1.2});
  const Ids single = alone(r);
  r.samples = 4;
  const Served served = serve(bard(), {.dtype = DType::f32, .page_size = 8}, {r});
  ASSERT_EQ(served.sequences.size(), 4u);
  std::set<Ids> texts;
  for (int32_t i = 0; i < 4; ++i) {
    const Sequence& s = served.sequences[static_cast<size_t>(i)];
    EXPECT_EQ(s.root_request, 0);
    EXPECT_EQ(s.sample, i);
    EXPECT_EQ(s.request.prompt, r.prompt);
    EXPECT_EQ(s.argmax[0], served.sequences[0].argmax[0]) << "one row of logits";
    texts.insert(chosen(s));
  }
  EXPECT_EQ(texts.size(), 4u);
  EXPECT_EQ(chosen(served.sequences[0]), single) << "asking for more changes no sample";
  int64_t rows = 0;
  for (const Pass& pass : served.passes) rows += std::ssize(pass.info.rows);
  EXPECT_EQ(rows, std::ssize(r.prompt) + 4 * 7);
}

TEST_F(ChoiceTest, SamplesAreTheSameWhateverTheSchedule) {
  Request r = request(3, {.temperature = 1.2}), other = request(2, {.temperature = 1});
  r.samples = other.samples = 3;
  const auto texts = [&](const EngineOptions& options) {
    std::map<std::pair<int32_t, int32_t>, Ids> by_name;
    for (const Sequence& s : serve_for_tokens(bard(), options, {r, other}).sequences)
      by_name[{s.root_request, s.sample}] = chosen(s);
    return by_name;
  };
  const auto want = texts({.dtype = DType::f32});
  EXPECT_EQ(want.size(), 6u);
  for (uint64_t seed = 1; seed <= 25; ++seed)
    EXPECT_EQ(texts(random_options(seed)), want) << "schedule " << seed;
}

TEST_F(ChoiceTest, AFullBatchTakesNoMoreSamples) {
  Request r = request(1, {.temperature = 1});
  r.samples = 5;
  for (const Pass& pass : serve(bard(), {.dtype = DType::f32, .max_batch = 2}, {r}).passes)
    EXPECT_LE(pass.info.pages.size(), 2u);
}

TEST_F(ChoiceTest, LogprobsAreOfEveryChoice) {
  Request r = request(1, {.temperature = 1, .logprobs = 3});
  const Sequence s = serve(bard(), {.dtype = DType::f32}, {r}).sequences[0];
  ASSERT_EQ(s.logprobs.size(), 8u);
  const Ids tokens = chosen(s);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(s.logprobs[i].chosen.token, tokens[i]);
    ASSERT_EQ(s.logprobs[i].top.size(), 3u);
    EXPECT_EQ(s.logprobs[i].top[0].token, s.argmax[i]);
    EXPECT_LE(s.logprobs[i].chosen.logprob, s.logprobs[i].top[0].logprob);
    EXPECT_LE(s.logprobs[i].top[0].logprob, 0);
  }
  r.sampling.logprobs = 0;
  EXPECT_TRUE(serve(bard(), {}, {r}).sequences[0].logprobs.empty());
}

// A text in which every token is a letter, so that a stop text spans several tokens.
std::string letters(std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t token : tokens) text += static_cast<char>('a' + token % 26);
  return text;
}

TEST_F(ChoiceTest, ATextEndsWithItsStopTextItsEosOrItsLength) {
  Request r = request(2, {});
  const Ids all = alone(r);
  const auto ended = [&](const Request& with) {
    const Sequence s =
        serve(bard(), {.dtype = DType::f32, .text_of = letters}, {with}).sequences[0];
    return std::pair(chosen(s).size(), s.ending);
  };
  EXPECT_EQ(ended(r), std::pair(size_t{8}, Ending::length));
  const std::string text = letters(all);
  r.stop = {"?", text.substr(2, 3)};
  const size_t end = text.find(r.stop[1]) + 3;
  EXPECT_EQ(ended(r), std::pair(end, Ending::stop));
  r.eos = {all[1]};
  const auto eos = static_cast<size_t>(std::ranges::find(all, all[1]) - all.begin()) + 1;
  EXPECT_EQ(ended(r), std::pair(eos, Ending::eos));
  r.forced = all;
  EXPECT_EQ(ended(r), std::pair(size_t{9}, Ending::length)) << "forced tokens are all fed";
}

TEST_F(ChoiceTest, APromptDoesNotEndItsText) {
  Request r = request(2, {});
  const Ids all = alone(r);
  r.prompt.push_back(all[0]);
  r.eos = {r.prompt[0]};
  r.stop = {letters(r.prompt)};
  EXPECT_EQ(serve(bard(), {.dtype = DType::f32, .text_of = letters}, {r}).sequences[0].ending,
            Ending::length);
}

TEST_F(ChoiceTest, WhatCannotBeChosenSoIsRefused) {
  Engine engine(bard(), cpu_ops(), {.pages = 2});
  EXPECT_EQ(error_of([&] { engine.submit({.prompt = {1}, .sampling = {.top_p = 0}}); }),
            "request 0 asks for the top_p 0, but it must be over 0, at most 1");
  EXPECT_EQ(error_of([&] { engine.submit({.prompt = {1}, .samples = 0}); }),
            "request 0 asks for 0 samples: ask for at least 1");
  EXPECT_EQ(error_of([&] { engine.submit({.prompt = {1}, .forced = {2}, .samples = 2}); }),
            "request 0 asks for 2 samples of tokens that are forced: leave out one of both");
  EXPECT_NE(error_of([&] { engine.submit({.prompt = {1}, .stop = {"x"}}); }).find("no tokenizer"),
            std::string::npos);
  EXPECT_EQ(engine.requests(), 0);
}

}  // namespace
}  // namespace lockstep
