#include "tools/requests.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/fixtures.h"

namespace lockstep {
namespace {

using Ids = std::vector<int32_t>;

TEST(IdsFrom, ReadsAListAndNothingElse) {
  EXPECT_EQ(ids_from("1,2,3", "--tokens"), (Ids{1, 2, 3}));
  EXPECT_EQ(ids_from("0", "--tokens"), Ids{0});
  for (const char* bad : {"", "1,", ",1", "1 2", "1,,2", "one", "99999999999", "1.5"})
    EXPECT_EQ(error_of([&] { ids_from(bad, "--force"); }),
              "--force wants token ids as in 1,2,3, found \"" + std::string(bad) + "\"");
}

class Requests : public testing::Test {
 protected:
  // Writes the lines to a file and reads them as --requests.
  std::vector<Request> read(const std::string& lines) {
    options_.requests = file_;
    std::ofstream(file_) << lines;
    return requests_from(options_, config_, nullptr);
  }
  std::string error_in(const std::string& lines) {
    const std::string sentence = error_of([&] { read(lines); });
    const size_t colon = sentence.find(": ");
    EXPECT_EQ(sentence.substr(0, colon).substr(0, file_.size()), file_) << sentence;
    return colon == std::string::npos ? sentence : sentence.substr(file_.size());
  }
  void TearDown() override { std::remove(file_.c_str()); }

  const std::string file_ = testing::TempDir() + "lockstep_requests.jsonl";
  ModelOptions options_{.model = "DIR", .max_new = 5};
  const ModelConfig config_{.eos = {9}};
};

TEST_F(Requests, CarryTheOptionsOfTheCommand) {
  options_.tokens = {"1,2", "3"};
  options_.force = "7,8";
  const auto requests = requests_from(options_, config_, nullptr);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].prompt, (Ids{1, 2}));
  EXPECT_EQ(requests[1].prompt, Ids{3});
  EXPECT_EQ(requests[1].max_new, 5);
  EXPECT_EQ(requests[1].forced, (Ids{7, 8}));
  EXPECT_EQ(requests[1].eos, Ids{9});
}

TEST_F(Requests, ReadTextThroughTheTokenizer) {
  const std::string dir = data_path("bard-qwen3");
  const Tokenizer tokenizer = Tokenizer::open(dir);
  options_.prompts = {"To be"};
  const auto requests = requests_from(options_, config_, &tokenizer);
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(tokenizer.decode(requests[0].prompt), "To be");
  EXPECT_EQ(error_of([&] { requests_from(options_, config_, nullptr); }),
            "a prompt of text needs DIR/tokenizer.json, which is not there: give --tokens 1,2,3 "
            "instead");
}

TEST_F(Requests, OfAFileMaySayMore) {
  const auto requests =
      read("{\"id\": \"a\", \"tokens\": [4, 5], \"max_new\": 2}\n\n{\"id\": 6, \"tokens\": [1]}\n");
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].name, "a");
  EXPECT_EQ(requests[0].prompt, (Ids{4, 5}));
  EXPECT_EQ(requests[0].max_new, 2);
  EXPECT_EQ(requests[1].name, "6");
  EXPECT_EQ(requests[1].max_new, 5);
}

TEST_F(Requests, OfABrokenFileAreRefusedByLine) {
  EXPECT_EQ(error_in("{\"tokens\": [1]}\n{\"tokens\"\n"), ", line 2: this is no JSON: {\"tokens\"");
  EXPECT_EQ(error_in("[1]"), ", line 1: a request must be a JSON object, found [1]");
  EXPECT_EQ(error_in("{\"promt\": \"x\"}"),
            ", line 1: a request has no \"promt\"; did you mean \"prompt\"?");
  EXPECT_EQ(error_in("{\"id\": 1}"), ", line 1: a request has either \"prompt\" or \"tokens\"");
  EXPECT_EQ(error_in("{\"tokens\": [1], \"prompt\": \"x\"}"),
            ", line 1: a request has either \"prompt\" or \"tokens\"");
  EXPECT_EQ(error_in("{\"prompt\": 3}"), ", line 1: \"prompt\" must be a text, found 3");
  EXPECT_EQ(error_in("{\"tokens\": [1, 2.5]}"),
            ", line 1: \"tokens\" must be a list of token ids, found 2.5 in it");
  EXPECT_EQ(error_in("{\"tokens\": [4294967296]}"),
            ", line 1: \"tokens\" must be a list of token ids, found 4294967296 in it");
  EXPECT_EQ(error_in("{\"tokens\": 3}"),
            ", line 1: \"tokens\" must be a list of token ids, found 3");
  EXPECT_EQ(error_in("{\"tokens\": [1], \"max_new\": 0}"),
            ", line 1: \"max_new\" must be a whole number of at least 1, found 0");
}

TEST_F(Requests, ThatAreNoneAreRefused) {
  const std::string sentence =
      "there is nothing to run: give --prompt TEXT, --tokens 1,2,3 or --requests FILE.jsonl with "
      "at "
      "least one request";
  EXPECT_EQ(error_of([&] { requests_from(options_, config_, nullptr); }), sentence);
  EXPECT_EQ(error_of([&] { read("\n"); }), sentence);
  options_.requests = "none.jsonl";
  EXPECT_EQ(error_of([&] { requests_from(options_, config_, nullptr); }),
            "--requests none.jsonl cannot be read: give a file with a JSON object a line");
  options_.requests = testing::TempDir();
  EXPECT_NE(error_of([&] { requests_from(options_, config_, nullptr); }).find("cannot be read"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
