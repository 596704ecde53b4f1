// What generate prints: texts, samples, endings, in text and in JSON.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/lockstep_binary.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

const std::string kBard = data_path("bard-qwen3");
const std::string kGenerate = "generate --dtype fp32 --model ";

std::string text_of(const std::string& options, const std::string& model = kBard) {
  const Outcome outcome = call_lockstep(kGenerate + model + " " + options);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

std::vector<Json> lines_of(const std::string& options, const std::string& model = kBard) {
  std::istringstream lines(text_of(options + " --format json", model));
  std::vector<Json> all;
  for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line));
  return all;
}

const std::string kSampled =
    "--prompt 'To be, or' --prompt 'My love' --max-new 24 --temperature 1 ";

TEST(Generate, IsGreedyUnlessATemperatureSaysOtherwise) {
  const std::string greedy = text_of("--prompt 'To be, or' --max-new 12");
  EXPECT_EQ(text_of("--prompt 'To be, or' --max-new 12 --seed 5"), greedy);
  EXPECT_NE(text_of("--prompt 'To be, or' --max-new 12 --temperature 3 --seed 5"), greedy);
}

TEST(Generate, DrawsTheSameForASeedHoweverItIsServed) {
  const std::string text = text_of(kSampled + "--samples 2");
  EXPECT_NE(text_of(kSampled + "--samples 2 --seed 1"), text);
  for (const char* how :
       {"--max-batch 1", "--chunk 1", "--budget 3", "--prefix-cache --page-size 2",
        "--schedule 7 --threads 1", "--pages 22 --page-size 4 --preempt swap",
        "--pages 22 --page-size 4 --preempt recompute"})
    EXPECT_EQ(text_of(kSampled + "--samples 2 " + how), text) << how;
}

TEST(Generate, AuditsItsCacheWithoutAWordOnStdout) {
  const std::string options = kSampled + "--samples 2 --prefix-cache --page-size 4";
  const Outcome outcome = call_lockstep(kGenerate + kBard + " " + options + " --audit");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, text_of(options));
  EXPECT_TRUE(outcome.err.starts_with("K/V audit: ")) << outcome.err;
  EXPECT_TRUE(outcome.err.ends_with(" read back, 0 findings\n")) << outcome.err;
  EXPECT_EQ(outcome.err.find(" 0 rows written"), std::string::npos) << outcome.err;
}

TEST(Generate, PrintsSamplesBesideTheirRequest) {
  const std::vector<Json> lines = lines_of(kSampled + "--samples 3");
  ASSERT_EQ(lines.size(), 6u);
  std::string all;
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(lines[i]["request"], i / 3);
    EXPECT_EQ(lines[i]["sample"], i % 3);
    EXPECT_EQ(lines[i]["tokens"].size(), 24u);
    EXPECT_EQ(lines[i]["ending"], "length");
    EXPECT_FALSE(lines[i].contains("logprobs"));
    all += lines[i]["text"].get<std::string>() + "\n";
  }
  EXPECT_EQ(text_of(kSampled + "--samples 3"), all) << "the texts are the same in both formats";
}

TEST(Generate, NeverPrintsAStopText) {
  const std::string whole = text_of("--prompt 'To be, or' --max-new 30");
  const size_t at = whole.find("my love");
  ASSERT_NE(at, std::string::npos) << whole;
  EXPECT_EQ(text_of("--prompt 'To be, or' --max-new 30 --stop 'my love' --stop absent"),
            whole.substr(0, at) + "\n");
  const Json line = lines_of("--prompt 'To be, or' --max-new 30 --stop 'my love'").at(0);
  EXPECT_EQ(line["ending"], "stop");
  EXPECT_EQ(line["text"], whole.substr(0, at));
  EXPECT_LT(line["tokens"].size(), 30u);
}

// The checkpoint with another token that ends a text.
std::string folder_ending_with(int32_t eos) {
  namespace fs = std::filesystem;
  const fs::path folder = temp_path("eos");
  fs::create_directories(folder);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
    fs::create_symlink(fs::absolute(data_path("bard-qwen3")) / name, folder / name);
  std::ofstream(folder / "generation_config.json") << Json{{"eos_token_id", eos}};
  return folder;
}

TEST(Generate, EndsAtEosUnlessItIsIgnored) {
  const std::string greedy = "--prompt 'To be, or' --max-new ";
  const Json whole = lines_of(greedy + "8").at(0);
  const std::string folder = folder_ending_with(whole["tokens"][2]);
  const Json ended = lines_of(greedy + "8", folder).at(0);
  EXPECT_EQ(ended["ending"], "eos");
  EXPECT_EQ(ended["tokens"].size(), 3u) << "the end is one of the tokens";
  EXPECT_LT(ended["text"].get<std::string>().size(), whole["text"].get<std::string>().size());
  EXPECT_EQ(lines_of(greedy + "2").at(0)["text"], ended["text"]) << "not of the text";
  EXPECT_EQ(lines_of(greedy + "8 --ignore-eos", folder).at(0), whole);
  std::filesystem::remove_all(folder);
}

TEST(Generate, ShowsLogprobs) {
  const Json line = lines_of("--prompt 'To be, or' --max-new 3 --logprobs 2").at(0);
  ASSERT_EQ(line["logprobs"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Json& one = line["logprobs"][i];
    EXPECT_EQ(one["token"], line["tokens"][i]);
    EXPECT_EQ(one["top"].size(), 2u);
    EXPECT_EQ(one["top"][0]["token"], one["token"]) << "greedy";
    EXPECT_GE(one["top"][0]["logprob"], one["top"][1]["logprob"]);
  }
  EXPECT_NE(trouble_of(kGenerate + kBard + " --prompt x --logprobs 2").find("--format json"),
            std::string::npos);
}

TEST(Generate, NeedsNoTokenizerToShowTokensAsJson) {
  const std::string tiny = data_path("tiny/qwen3-default");  // has none
  const Json line = lines_of("--tokens 1,2,3 --max-new 4 --logprobs 2", tiny).at(0);
  EXPECT_EQ(line["tokens"].size(), 4u);
  EXPECT_FALSE(line.contains("text")) << "which is not known";
  EXPECT_FALSE(line["logprobs"][0].contains("text"));
  EXPECT_EQ(line["logprobs"][0]["token"], line["tokens"][0]);
  const std::string sentence = trouble_of(kGenerate + tiny + " --tokens 1,2,3");
  EXPECT_NE(sentence.find("no tokenizer.json: add it, or give --tokens with --format json"),
            std::string::npos)
      << sentence;
}

TEST(Generate, RefusesWhatCannotBeSampled) {
  const auto has = [](const std::string& options, const std::string& part) {
    const std::string sentence = trouble_of(kGenerate + kBard + " --prompt x " + options);
    EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
  };
  has("--temperature=-1", "the temperature -1");
  has("--temperature nan", "the temperature nan");
  has("--temperature warm", "--temperature");
  has("--top-k=-1", "--top-k");
  has("--top-p 0", "the top_p 0");
  has("--min-p 1.5", "the min_p 1.5");
  has("--repetition-penalty 0", "the repetition_penalty 0");
  has("--seed=-1", "--seed");
  has("--samples 0", "--samples");
  has("--samples 2 --force 1,2", "2 samples of tokens that are forced");
  has("--stop ''", "--stop wants a text");
  has("--preempt drop", "one of recompute|swap is wanted");
  has("--logprobs=-1", "--logprobs");
  EXPECT_NE(trouble_of(kGenerate + kBard + " </dev/null").find("there is nothing to run"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
