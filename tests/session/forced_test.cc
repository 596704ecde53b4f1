#include "src/session/forced.h"

#include <gtest/gtest.h>

#include "probes/qwen_graph.h"
#include "src/report/report.h"
#include "src/session/machine.h"
#include "tests/fixtures.h"
#include "tests/helpers.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

using Ids = std::vector<int32_t>;

Request asked(const std::string& name, const Ids& prompt) {
  Request request;
  request.name = name;
  request.prompt = prompt;
  return request;
}

// A trace, and the result of a judgement, of the same requests.
class ForceFrom : public testing::Test {
 protected:
  ForceFrom() {
    Manifest manifest{.graph = qwen_graph({1, true}), .dtype = DType::bf16};
    manifest.requests = {{.id = 0, .name = "a", .prompt = {1, 2}, .tokens = {7, 8, 9}},
                         {.id = 1, .prompt = {3}, .tokens = {4}},
                         {.id = 2, .prompt = {5}, .tokens = {6, 6}},
                         {.id = 3, .name = "cut", .prompt = {5}},
                         {.id = 4, .name = "thrice", .prompt = {1, 2}, .tokens = {7}},
                         {.id = 5, .name = "thrice", .prompt = {1, 2}, .tokens = {1, 1, 1, 2}},
                         {.id = 6, .name = "thrice", .prompt = {1, 2}, .tokens = {2, 2}}};
    create_trace(trace_, manifest)->finish(manifest.requests);
    Result result;
    for (const RequestInfo& r : manifest.requests)
      result.requests.push_back(
          {.id = r.id, .name = r.name, .prompt = r.prompt, .tokens = r.tokens});
    result_ = folder_.write("result.json", report_json(result));
  }

  std::string error_for(std::vector<Request> requests) {
    return error_of([&] { force_from(trace_, requests); });
  }

  const TempFolder folder_;
  const std::string trace_ = folder_ / "base.h5";
  std::string result_;
};

TEST_F(ForceFrom, TakesTheTokensOfTheSameRequests) {
  for (const std::string& path : {trace_, result_}) {
    std::vector<Request> requests = {asked("a", {1, 2}), asked("", {3}), asked("", {5})};
    force_from(path, requests);
    EXPECT_EQ(requests[0].forced, (Ids{7, 8})) << "the last one was never fed";
    EXPECT_EQ(requests[0].steps(), 3);
    EXPECT_EQ(requests[1].forced, Ids{});
    EXPECT_EQ(requests[1].steps(), 1);
    EXPECT_EQ(requests[2].forced, Ids{6});
    std::vector<Request> alone = {asked("", {5})};  // it has another number there
    force_from(path, alone);
    EXPECT_EQ(alone[0].forced, Ids{6});
  }
}

TEST_F(ForceFrom, TakesTheTextOfEachSample) {
  for (const std::string& path : {trace_, result_}) {
    std::vector<Request> requests = {asked("thrice", {1, 2}), asked("a", {1, 2})};
    requests[0].samples = 3;
    force_from(path, requests);
    EXPECT_EQ(requests[0].forced, Ids{});
    EXPECT_EQ(requests[0].steps(), 1);
    EXPECT_EQ(requests[0].forced_samples, (std::vector<Ids>{{1, 1, 1}, {2}}));
    EXPECT_EQ(requests[0].all_steps(), 1 + 4 + 2);
    EXPECT_EQ(requests[0].max_positions(), 2 + 3) << "the longest needs most slots";
    EXPECT_EQ(requests[1].forced, (Ids{7, 8}));
    EXPECT_TRUE(requests[1].forced_samples.empty());
  }
  Request two = asked("thrice", {1, 2});
  two.samples = 2;
  EXPECT_NE(error_for({two}).find("has 3 texts of request \"thrice\", but it asks for 2: ask"),
            std::string::npos);
  EXPECT_NE(error_for({two, two}).find("does not tell which texts are those of request \"thrice\""),
            std::string::npos);
}

// Samples that were drawn are different texts, and without a temperature none would be chosen.
TEST_F(ForceFrom, HasEachSampleServedWithItsOwnText) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  Request request = asked("", {5, 6, 7});
  request.max_new = 4;
  request.samples = 3;
  std::vector<Request> again = {request};
  request.sampling.temperature = 9;
  const Served drawn = serve(checkpoint, {}, {request});
  ASSERT_EQ(drawn.sequences.size(), 3u);
  Manifest manifest{.graph = qwen_graph({1, true}), .dtype = DType::bf16};
  for (const Sequence& s : drawn.sequences)
    manifest.requests.push_back(
        {.id = s.id, .prompt = s.request.prompt, .tokens = {s.tokens.begin() + 3, s.tokens.end()}});
  const std::string path = folder_ / "drawn.h5";
  create_trace(path, manifest)->finish(manifest.requests);
  force_from(path, again);
  const Served forced = serve(checkpoint, {}, again);
  ASSERT_EQ(forced.sequences.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Ids &was = drawn.sequences[i].tokens, &is = forced.sequences[i].tokens;
    ASSERT_EQ(was.size(), 7u);
    ASSERT_EQ(is.size(), 7u);
    EXPECT_TRUE(std::equal(was.begin(), was.end() - 1, is.begin())) << "but for the last choice";
    EXPECT_EQ(forced.sequences[i].request.forced, Ids(was.begin() + 3, was.end() - 1));
    for (size_t other = 0; other < i; ++other) EXPECT_NE(was, drawn.sequences[other].tokens);
  }
}

TEST_F(ForceFrom, RefusesWhatIsNotTheSame) {
  EXPECT_NE(error_for({asked("b", {1, 2})}).find("has no request \"b\""), std::string::npos);
  EXPECT_NE(
      error_for({asked("a", {1})}).find("has request \"a\" with another prompt (2 tokens, here 1)"),
      std::string::npos);
  EXPECT_NE(error_for({asked("", {9})}).find("has no request 0"), std::string::npos);
  EXPECT_NE(error_for({asked("cut", {5})}).find("has no tokens of request \"cut\""),
            std::string::npos);
  Request forced = asked("a", {1, 2}), several = asked("a", {1, 2});
  forced.forced = {1};
  several.samples = 2;
  EXPECT_NE(error_for({forced}).find("which is forced already"), std::string::npos);
  EXPECT_NE(error_for({several}).find("has one text of request \"a\", but it asks for 2"),
            std::string::npos);
  std::vector<Request> requests = {asked("a", {1, 2})};
  EXPECT_NE(error_of([&] { force_from(folder_ / "none.json", requests); }).find("cannot be read"),
            std::string::npos);
  expect_trouble("broken.json",
                 [&] { force_from(folder_.write("broken.json", "{\"a\": 1}"), requests); });
}

TEST(Machine, SaysWhoComputed) {
  const auto facts = machine_facts(Device::cpu);
  EXPECT_FALSE(facts.at("isa").empty());
  EXPECT_NE(facts.at("onednn_version").find('.'), std::string::npos);
  EXPECT_FALSE(facts.contains("gpu"));
  EXPECT_EQ(field_of("a : 1\nmodel name\t: AMD EPYC\nmodel name : x\n", "model name"), "AMD EPYC");
  EXPECT_EQ(field_of("a : 1\n", "model name"), "");
}

}  // namespace
}  // namespace lockstep
