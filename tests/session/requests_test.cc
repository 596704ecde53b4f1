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
  const ModelConfig config_{.vocab = 5000, .eos = {9}};
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

TEST_F(Requests, MayEachBeForced) {
  options_.force = "7,8";
  const auto requests = read("{\"tokens\": [1], \"force\": [4, 5, 6]}\n{\"tokens\": [2]}\n");
  EXPECT_EQ(requests[0].forced, (Ids{4, 5, 6}));
  EXPECT_EQ(requests[1].forced, (Ids{7, 8})) << "as the command says";
  EXPECT_NE(error_in("{\"tokens\": [1], \"force\": []}").find("at least one token id"),
            std::string::npos);
  EXPECT_NE(error_in("{\"tokens\": [1], \"force\": [1, \"a\"]}")
                .find("force[1] is \"a\", a whole number"),
            std::string::npos);
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
  const std::string id = ", a whole number from 0 to 2147483647 was wanted: correct it";
  EXPECT_EQ(error_in("{\"tokens\": [1]}\n{\"tokens\"\n"),
            ", line 2: is no JSON from byte 10 on: correct it");
  EXPECT_EQ(error_in("[1]"), ", line 1 is a list of 1, an object was wanted: correct it");
  EXPECT_TRUE(error_in("{\"promt\": \"x\"}")
                  .starts_with(", line 1: a request has no \"promt\"; did you mean \"prompt\"?"));
  EXPECT_EQ(error_in("{\"id\": 1}"),
            ", line 1: a request has one of \"prompt\", \"tokens\" and \"messages\"");
  EXPECT_EQ(error_in("{\"tokens\": [1], \"prompt\": \"x\"}"),
            ", line 1: a request has one of \"prompt\", \"tokens\" and \"messages\"");
  EXPECT_EQ(error_in("{\"prompt\": 3}"), ", line 1: prompt is 3, a text was wanted: correct it");
  EXPECT_EQ(error_in("{\"prompt\": \"\"}"),
            ", line 1: prompt is \"\", a text of at least one token was wanted: correct it");
  EXPECT_EQ(error_in("{\"tokens\": [1, 2.5]}"), ", line 1: tokens[1] is 2.5" + id);
  EXPECT_EQ(error_in("{\"tokens\": [4294967296]}"), ", line 1: tokens[0] is 4294967296" + id);
  EXPECT_EQ(error_in("{\"tokens\": [-1]}"), ", line 1: tokens[0] is -1" + id);
  EXPECT_EQ(error_in("{\"tokens\": 3}"), ", line 1: tokens is 3, a list was wanted: correct it");
  EXPECT_EQ(error_in("{\"tokens\": [1], \"max_new\": 0}"),
            ", line 1: max_new is 0, a whole number of at least 1 was wanted: correct it");
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
  const std::string count = ", a whole number from 1 to 2147483647 was wanted: correct it";
  EXPECT_EQ(with("\"temperature\": \"hot\""),
            ", line 1: temperature is \"hot\", a number was wanted: correct it");
  EXPECT_EQ(with("\"temperature\": -1"),
            ", line 1: a request asks for the temperature -1, but it must be 0 (greedy) to 1e6");
  EXPECT_EQ(with("\"top_k\": 1.5"),
            ", line 1: top_k is 1.5, a whole number of at least 0 was wanted: correct it");
  EXPECT_EQ(with("\"top_p\": 0"),
            ", line 1: a request asks for the top_p 0, but it must be over 0, at most 1");
  EXPECT_EQ(with("\"seed\": -1"),
            ", line 1: seed is -1, a whole number of at least 0 was wanted: correct it");
  EXPECT_EQ(
      with("\"seed\": 18446744073709551615"),
      ", line 1: seed is 18446744073709551615, a whole number of at least 0 was wanted: correct "
      "it");
  EXPECT_EQ(with("\"n\": 0"), ", line 1: n is 0" + count);
  EXPECT_EQ(with("\"n\": 4294967296"), ", line 1: n is 4294967296" + count);
  EXPECT_EQ(with("\"arrival\": -1"),
            ", line 1: arrival is -1, a whole number of at least 0 was wanted: correct it");
  const std::string stop = ", line 1: stop", wanted = " was wanted: correct it";
  EXPECT_EQ(with("\"stop\": 3"), stop + " is 3, a text" + wanted);
  EXPECT_EQ(with("\"stop\": null"), stop + " is null, a text" + wanted);
  EXPECT_EQ(with("\"stop\": [[\"a\"]]"), stop + "[0] is a list of 1, a text" + wanted);
  const std::string none_empty = ", a text, or a list of texts, none empty," + wanted;
  EXPECT_EQ(with("\"stop\": \"\""), stop + " is \"\"" + none_empty);
  EXPECT_EQ(with("\"stop\": [\"a\",\"\"]"), stop + " is a list of 2" + none_empty);
  EXPECT_NE(
      error_in("{\"messages\": []}").find("messages is a list of 0, a list of messages was wanted"),
      std::string::npos);
  EXPECT_NE(error_in("{\"messages\": [3]}").find("messages[0] is"), std::string::npos);
  EXPECT_NE(error_in("{\"messages\": [{\"role\": \"user\"}]}").find("messages[0] is"),
            std::string::npos);
  EXPECT_EQ(
      error_in("{\"messages\": [{\"role\": \"tool\", \"content\": \"\"}]}"),
      ", line 1: messages[0].role is \"tool\", system, user or assistant was wanted: correct it");
  options_.stop = {""};
  EXPECT_EQ(error_of([&] { request_pattern(options_, config_); }),
            "--stop wants a text, found an empty one");
}

TEST_F(Requests, HaveTokensOfTheModelOrSayWhoNamedThem) {
  EXPECT_EQ(read("{\"tokens\": [4999]}").size(), 1u);
  const std::string rest =
      " is none of the model's vocabulary, which is 0..4999: use the tokenizer "
      "of this model";
  EXPECT_EQ(error_in("{\"tokens\": [1]}\n{\"tokens\": [1, 5000]}\n"),
            ", line 2: token 5000" + rest);
  EXPECT_EQ(error_in("{\"tokens\": [1], \"force\": [-1]}"), ", line 1: token -1" + rest);
  options_.requests = "";
  options_.tokens = {"1", "99999"};
  EXPECT_EQ(error_of([&] { requests_from(options_, config_, nullptr); }),
            "--tokens: token 99999" + rest);
  options_.force = "70000";
  EXPECT_EQ(error_of([&] { requests_from(options_, config_, nullptr); }),
            "--force: token 70000" + rest);
}

TEST_F(Requests, AreNotTakenForAllWhereReadingFails) {
  // A file that opens and whose first byte cannot be read: there is nothing at address 0.
  options_.requests = "/proc/self/mem";
  expect_trouble("\"/proc/self/mem\" cannot be read to its end (Input/output error",
                 [&] { requests_from(options_, config_, nullptr); });
  options_.requests = "/dev/full";
  expect_trouble("should be a regular file and is a device",
                 [&] { requests_from(options_, config_, nullptr); });
}

TEST_F(Requests, ThatWereCutAreRefused) {
  const std::string last = "{\"tokens\": [1, 2], \"id\": \"b\"}";
  EXPECT_EQ(read("{\"tokens\": [1]}\n" + last).size(), 2u) << "the last line needs no break";
  for (size_t length = 1; length < last.size(); ++length)
    EXPECT_TRUE(error_in("{\"tokens\": [1]}\n" + last.substr(0, length))
                    .starts_with(", line 2: is no JSON from byte "));
  EXPECT_NE(error_in("{\"tokens\": [1]}\n" + std::string(3, '\0')).find("is no JSON"),
            std::string::npos)
      << "as a file whose end was never written";
}

TEST_F(Requests, ThatAreNoneAreRefused) {
  EXPECT_EQ(error_of([&] { requests_from(options_, config_, nullptr); }),
            "there is nothing to run: give --prompt TEXT, --tokens 1,2,3 or --requests FILE.jsonl "
            "with at least one request");
  EXPECT_TRUE(error_of([&] {
                read("\n");
              }).ends_with("requests.jsonl: has no request, and one a line was wanted"));
  options_.requests = "none.jsonl";
  EXPECT_EQ(error_of([&] { requests_from(options_, config_, nullptr); }),
            "\"none.jsonl\" cannot be opened (No such file or directory): give the path of a file "
            "that can be read");
  options_.requests = testing::TempDir();
  expect_trouble("and is a folder", [&] { requests_from(options_, config_, nullptr); });
}

}  // namespace
}  // namespace lockstep
