#include "src/session/requests.h"

#include <gtest/gtest.h>

#include <algorithm>
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

  const std::string file_ = temp_path("requests.jsonl");
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
  EXPECT_TRUE(error_in("{\"promt\": \"x\"}")
                  .starts_with(", line 1: a request has no \"promt\"; did you mean \"prompt\"?"));
  EXPECT_EQ(error_in("{\"id\": 1}"),
            ", line 1: a request has one of \"prompt\", \"tokens\" and \"messages\"");
  EXPECT_EQ(error_in("{\"tokens\": [1], \"prompt\": \"x\"}"),
            ", line 1: a request has one of \"prompt\", \"tokens\" and \"messages\"");
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

TEST_F(Requests, SayHowTheirTokensAreChosen) {
  options_.sampling = {.temperature = 0.5, .top_k = 4, .top_p = 0.9, .seed = 8};
  options_.samples = 2;
  options_.stop = {"x"};
  const auto requests = read(
      "{\"tokens\": [1]}\n"
      "{\"tokens\": [1], \"temperature\": 1, \"top_k\": 0, \"top_p\": 0.25, \"min_p\": 0.125, "
      "\"repetition_penalty\": 1.5, \"seed\": 9007199254740993, \"stop\": [\"a\", \"b\"], \"n\": "
      "3, "
      "\"arrival\": 7}\n"
      "{\"tokens\": [1], \"stop\": \"c\"}\n");
  ASSERT_EQ(requests.size(), 3u);
  const Sampling& as_options = requests[0].sampling;
  EXPECT_EQ(as_options.temperature, 0.5);
  EXPECT_EQ(as_options.top_k, 4);
  EXPECT_EQ(as_options.top_p, 0.9);
  EXPECT_EQ(as_options.seed, 8u);
  EXPECT_EQ(requests[0].samples, 2);
  EXPECT_EQ(requests[0].stop, std::vector<std::string>{"x"});
  const Sampling& own = requests[1].sampling;
  EXPECT_EQ(own.temperature, 1);
  EXPECT_EQ(own.top_k, 0);
  EXPECT_EQ(own.top_p, 0.25);
  EXPECT_EQ(own.min_p, 0.125);
  EXPECT_EQ(own.repetition_penalty, 1.5);
  EXPECT_EQ(own.seed, 9007199254740993u) << "no double in between";
  EXPECT_EQ(requests[1].samples, 3);
  EXPECT_EQ(requests[1].arrival, 7);
  EXPECT_EQ(requests[1].stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(requests[2].stop, std::vector<std::string>{"c"});
}

TEST_F(Requests, OfAChatAreRenderedAndEndWithTheTurn) {
  const Tokenizer tokenizer = Tokenizer::open(data_path("bard-qwen3"));
  const int32_t end = end_of_turn(tokenizer);
  options_.requests = file_;
  std::ofstream(file_) << "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, "
                          "{\"content\": \"Why?\", \"role\": \"user\"}]}\n{\"prompt\": \"Why?\"}\n";
  auto requests = requests_from(options_, config_, &tokenizer);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(tokenizer.decode(requests[0].prompt),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(std::ranges::count(requests[0].prompt, end), 2) << "a mark is one token";
  EXPECT_EQ(requests[0].eos, (Ids{9, end}));
  EXPECT_EQ(tokenizer.decode(requests[1].prompt), "Why?") << "as it is without --chat";
  EXPECT_EQ(requests[1].eos, Ids{9});

  options_.chat = options_.ignore_eos = true;
  requests = requests_from(options_, config_, &tokenizer);
  EXPECT_EQ(tokenizer.decode(requests[1].prompt),
            "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(requests[0].eos, Ids{});
  EXPECT_EQ(requests[1].eos, Ids{});
}

TEST_F(Requests, WithBadNumbersOrMessagesAreRefusedByLine) {
  const auto with = [&](const std::string& field) {
    return error_in("{\"tokens\": [1], " + field + "}");
  };
  EXPECT_EQ(with("\"temperature\": \"hot\""),
            ", line 1: \"temperature\" must be a number, found \"hot\"");
  EXPECT_EQ(with("\"temperature\": -1"),
            ", line 1: a request asks for the temperature -1, but it must be 0 (greedy) to 1e6");
  EXPECT_EQ(with("\"top_k\": 1.5"),
            ", line 1: \"top_k\" must be a whole number of at least 0, found 1.5");
  EXPECT_EQ(with("\"top_p\": 0"),
            ", line 1: a request asks for the top_p 0, but it must be over 0, at most 1");
  EXPECT_EQ(with("\"seed\": -1"),
            ", line 1: \"seed\" must be a whole number of at least 0, found -1");
  EXPECT_EQ(with("\"seed\": 18446744073709551615"),
            ", line 1: \"seed\" must be a whole number of at least 0, found 18446744073709551615");
  EXPECT_EQ(with("\"n\": 0"), ", line 1: \"n\" must be a whole number of at least 1, found 0");
  EXPECT_EQ(with("\"n\": 4294967296"),
            ", line 1: \"n\" must be a whole number of at least 1, found 4294967296");
  EXPECT_EQ(with("\"arrival\": -1"),
            ", line 1: \"arrival\" must be a whole number of at least 0, found -1");
  const std::string stop =
      ", line 1: \"stop\" must be a text or a list of texts, none empty, found ";
  for (const std::string bad : {"3", "\"\"", "[\"a\",\"\"]", "[[\"a\"]]", "null"})
    EXPECT_EQ(with("\"stop\": " + bad), stop + bad);
  EXPECT_NE(error_in("{\"messages\": []}").find("must be a list of"), std::string::npos);
  EXPECT_NE(error_in("{\"messages\": [3]}").find("a message must be"), std::string::npos);
  EXPECT_NE(error_in("{\"messages\": [{\"role\": \"user\"}]}").find("a message must be"),
            std::string::npos);
  EXPECT_EQ(error_in("{\"messages\": [{\"role\": \"tool\", \"content\": \"\"}]}"),
            ", line 1: a message is of the system, the user or the assistant, found \"tool\"");
  options_.stop = {""};
  EXPECT_EQ(error_of([&] { request_pattern(options_, config_); }),
            "--stop wants a text, found an empty one");
}

// Hands out its text and then fails, as a disk, a pipe or a network file system may.
class FailingBuffer : public std::streambuf {
 public:
  explicit FailingBuffer(std::string text) : text_(std::move(text)) {
    setg(text_.data(), text_.data(), text_.data() + text_.size());
  }

 private:
  int_type underflow() override { throw std::ios_base::failure("Input/output error"); }
  std::string text_;
};

TEST_F(Requests, AreNotTakenForAllWhereReadingFails) {
  options_.requests = "asked.jsonl";
  const Request pattern = request_pattern(options_, config_);
  const auto error = [&](const std::string& text) {
    FailingBuffer buffer(text);
    std::istream lines(&buffer);
    return error_of([&] { requests_in(lines, options_, pattern, nullptr); });
  };
  const std::string tail =
      " requests above are not all, so none is run; give a file that can be read to its end";
  const std::string failed = ": reading failed here, before the end: the ";
  EXPECT_EQ(error("{\"tokens\": [1]}\n{\"tokens\": [2]}\n"),
            "asked.jsonl, line 3" + failed + "2" + tail);
  EXPECT_EQ(error("\n{\"tokens\": [1]}\n{\"tok"), "asked.jsonl, line 3" + failed + "1" + tail);
  EXPECT_EQ(error("{\"tokens\": [1]}"), "asked.jsonl, line 1" + failed + "0" + tail);
  // A file that opens and whose first byte cannot be read: there is nothing at address 0.
  options_.requests = "/proc/self/mem";
  EXPECT_EQ(error_of([&] { requests_from(options_, config_, nullptr); }),
            "/proc/self/mem, line 1" + failed + "0" + tail);
}

TEST_F(Requests, ThatWereCutAreRefused) {
  const std::string last = "{\"tokens\": [1, 2], \"id\": \"b\"}";
  EXPECT_EQ(read("{\"tokens\": [1]}\n" + last).size(), 2u) << "the last line needs no break";
  for (size_t length = 1; length < last.size(); ++length)
    EXPECT_EQ(error_in("{\"tokens\": [1]}\n" + last.substr(0, length)),
              ", line 2: this is no JSON: " + last.substr(0, length));
  EXPECT_NE(error_in("{\"tokens\": [1]}\n" + std::string(3, '\0')).find("this is no JSON"),
            std::string::npos)
      << "as a file whose end was never written";
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
