#include "src/session/chat.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/helpers.h"

namespace lockstep {
namespace {

TEST(ChatText, IsChatMlOpenForTheAssistant) {
  EXPECT_EQ(chat_text({{"user", "Hi"}, {"assistant", "Ho"}, {"user", "two\nlines"}}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n"
            "<|im_start|>user\ntwo\nlines<|im_end|>\n<|im_start|>assistant\n");
}

TEST(EndOfTurn, IsTheTokenOfTheTokenizer) {
  for (const char* name : {"bard-qwen3", "bard-qwen2.5"})
    EXPECT_EQ(end_of_turn(Tokenizer::open(data_path(name))), 4095);
}

TEST(EndOfTurn, IsMissedInATokenizerWithoutChat) {
  const std::string dir = temp_path("no_chat");
  std::filesystem::create_directories(dir);
  nlohmann::json tokenizer;
  std::ifstream(data_path("bard-qwen3/tokenizer.json")) >> tokenizer;
  auto& added = tokenizer["added_tokens"];
  for (size_t i = added.size(); i-- > 0;)
    if (added[i]["content"] == "<|im_end|>") added.erase(i);
  std::ofstream(dir + "/tokenizer.json") << tokenizer;
  const std::string sentence = error_of([&] { end_of_turn(Tokenizer::open(dir)); });
  EXPECT_NE(sentence.find("<|im_end|>, which this tokenizer lacks"), std::string::npos) << sentence;
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace lockstep
