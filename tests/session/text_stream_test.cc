#include "src/session/text_stream.h"

#include "tests/helpers.h"

namespace lockstep {
namespace {

class TextStreamTest : public testing::Test {
 protected:
  // What each token lets out, and at last the end.
  std::vector<std::string> parts(const std::string& text, std::vector<std::string> stop) const {
    TextStream stream(tokenizer_, std::move(stop));
    std::vector<std::string> parts;
    // A token a byte, where tokens of single bytes exist: the text comes as slowly as it can.
    for (const char c : text) parts.push_back(stream.push(byte(c)));
    parts.push_back(stream.finish());
    return parts;
  }
  std::string whole(const std::string& text, std::vector<std::string> stop) const {
    std::string all;
    for (const std::string& part : parts(text, std::move(stop))) all += part;
    return all;
  }
  int32_t byte(char c) const {
    for (int32_t id = 0; id < tokenizer_.size(); ++id)
      if (tokenizer_.bytes_of(id) == std::string_view(&c, 1)) return id;
    ADD_FAILURE() << "no token is the byte " << int{c};
    return 0;
  }
  const Tokenizer tokenizer_ = Tokenizer::open(data_path("bard-qwen3"));
};

using Parts = std::vector<std::string>;

TEST_F(TextStreamTest, LetsEverythingOutAtOnceWithoutStopTexts) {
  EXPECT_EQ(parts("abc", {}), (Parts{"a", "b", "c", ""}));
}

TEST_F(TextStreamTest, HoldsBackWhatMightBeAStopText) {
  EXPECT_EQ(parts("aENb", {"END"}), (Parts{"a", "", "", "ENb", ""}));
  EXPECT_EQ(parts("aEN", {"END"}), (Parts{"a", "", "", "EN"})) << "the end shows that it is none";
  EXPECT_EQ(parts("aENDb", {"END"}), (Parts{"a", "", "", "", "", ""}));
}

TEST_F(TextStreamTest, CutsBeforeTheFirstOfAllStopTexts) {
  EXPECT_EQ(whole("one two three", {"three", "two"}), "one ");
  EXPECT_EQ(whole("stop", {"stop"}), "");
  EXPECT_EQ(whole("aab", {"ab"}), "a") << "a beginning may begin within a beginning";
  EXPECT_EQ(whole("ababac", {"abac"}), "ab");
  EXPECT_EQ(whole("xyzw", {"yzq", "z"}), "xy") << "the shorter one ends it within the longer";
  EXPECT_EQ(whole("nothing", {"thong"}), "nothing");
}

TEST_F(TextStreamTest, FindsAStopTextWithinOneToken) {
  TextStream stream(tokenizer_, {"e"});
  std::string text;
  for (const int32_t id : tokenizer_.encode("To be, or not")) text += stream.push(id);
  EXPECT_EQ(text + stream.finish(), "To b");
}

TEST_F(TextStreamTest, NeverLetsOutHalfACharacter) {
  EXPECT_EQ(parts("a\u20ac", {}), (Parts{"a", "", "", "\u20ac", ""}));
  EXPECT_EQ(parts("a\u20acb", {"\u20acc"}), (Parts{"a", "", "", "", "\u20acb", ""}));
  EXPECT_EQ(whole("a\xe2\x82", {}), "a\ufffd") << "the end cuts it off";
}

}  // namespace
}  // namespace lockstep
