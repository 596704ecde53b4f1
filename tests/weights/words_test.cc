#include "src/weights/words.h"

#include <chrono>
#include <vector>

#include "kernels/base/utf8.h"
#include "src/weights/bpe.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

Words words_of(const std::string& text) {
  Words words;
  WordSplitter().split(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

TEST(Words, are_cut_as_the_expression_says) {
  EXPECT_EQ(words_of(""), Words{});
  EXPECT_EQ(words_of("don't I'LL"), (Words{"don", "'t", " I", "'LL"}));
  EXPECT_EQ(words_of("a1 23"), (Words{"a", "1", " ", "2", "3"}));
  EXPECT_EQ(words_of("x  y"), (Words{"x", " ", " y"}));
  EXPECT_EQ(words_of("a \n\n b  "), (Words{"a", " \n\n", " b", "  "}));
  EXPECT_EQ(words_of("f(x);\r\n"), (Words{"f", "(x", ");\r\n"}));
}

TEST(Words, blanks_are_the_white_space_of_unicode) {
  // NEL, no-break space, em space and ideographic space are blanks: the last of a run goes to a
  // word.
  for (const std::string blank : {"\xC2\x85", "\xC2\xA0", "\xE2\x80\x83", "\xE3\x80\x80"})
    EXPECT_EQ(words_of("x" + blank + blank + "y"), (Words{"x", blank, blank + "y"}));
  // The Mongolian vowel separator and the zero-width space are not.
  for (const std::string mark : {"\xE1\xA0\x8E", "\xE2\x80\x8B"})
    EXPECT_EQ(words_of("x" + mark + mark + "y"), (Words{"x", mark + mark, "y"}));
}

TEST(Words, letters_and_digits_are_those_of_unicode) {
  EXPECT_EQ(words_of("東京2"), (Words{"東京", "2"}));
  EXPECT_EQ(words_of("½²"), (Words{"½", "²"}));
}

TEST(Words, long_runs_neither_overflow_nor_get_lost) {
  const size_t size = 1 << 20;
  for (const std::string unit : {" ", "\xC2\xA0", "a", "é", "!", "\n", " \t", "e\xCC\x81"}) {
    std::string text;
    while (text.size() < size) text += unit;
    std::string joined;
    for (const std::string& word : words_of(text)) joined += word;
    EXPECT_EQ(joined, text) << "of " << unit;
  }
}

TEST(Words, refuses_what_is_not_utf8) {
  expect_trouble("give UTF-8", [] { words_of("a\xFF"); });
  expect_trouble("give UTF-8", [] { normalised("a\xFF"); });
}

TEST(Words, normal_form_composes) {
  EXPECT_EQ(normalised("e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(normalised("\xE2\x84\xAB"), "\xC3\x85");      // the Angstrom sign
  EXPECT_EQ(normalised("\xEF\xAC\x81"), "\xEF\xAC\x81");  // a ligature stays
  EXPECT_EQ(normalised(std::string("\xC3\xA9\0x", 4)), std::string("\xC3\xA9\0x", 4));
}

TEST(Words, marks_out_of_order_take_no_quadratic_time) {
  // A dot below goes before an acute, and composes with e.
  constexpr int kMarks = 200000;
  std::string text = "e", want = "\xE1\xBA\xB9", acutes;
  for (int i = 0; i < kMarks; ++i) {
    text += "\xCC\x81\xCC\xA3";
    if (i > 0) want += "\xCC\xA3";
    acutes += "\xCC\x81";
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(normalised(text) == want + acutes);  // half a megabyte is not to be shown
  EXPECT_LE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

// The 256 bytes as tokens 0 to 255, to which a test adds merges.
Bpe bytes_alone() {
  std::unordered_map<std::string, int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) ids[std::string(1, static_cast<char>(byte))] = byte;
  return Bpe(ids, "tokenizer.json");
}

std::vector<int32_t> encode(const Bpe& bpe, std::string_view word) {
  std::vector<int32_t> ids;
  bpe.encode(word, ids);
  return ids;
}

TEST(BytePairs, lowest_rank_first_and_leftmost_first) {
  Bpe bpe = bytes_alone();
  bpe.add_merge('b', 'c', 256);
  bpe.add_merge('a', 'b', 257);
  bpe.add_merge('a', 'a', 258);
  bpe.add_merge(258, 'a', 259);
  bpe.add_merge(258, 258, 260);
  EXPECT_EQ(encode(bpe, ""), std::vector<int32_t>{});
  EXPECT_EQ(encode(bpe, "abc"), (std::vector<int32_t>{'a', 256}));
  EXPECT_EQ(encode(bpe, "abx"), (std::vector<int32_t>{257, 'x'}));
  EXPECT_EQ(encode(bpe, "aa"), std::vector<int32_t>{258});
  EXPECT_EQ(encode(bpe, "aaa"), std::vector<int32_t>{259});
  EXPECT_EQ(encode(bpe, "aaaa"), std::vector<int32_t>{260});
  // Pairs from the left leave one over, which the lower rank then takes up: (aa)(aa)a.
  EXPECT_EQ(encode(bpe, "aaaaa"), (std::vector<int32_t>{258, 259}));
}

TEST(BytePairs, a_word_of_a_megabyte_takes_no_quadratic_time) {
  Bpe bpe = bytes_alone();
  bpe.add_merge('a', 'a', 256);
  for (int32_t id = 256; id < 276; ++id) bpe.add_merge(id, id, id + 1);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(encode(bpe, std::string(1 << 20, 'a')), std::vector<int32_t>{275});
  EXPECT_LE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(BytePairs, every_byte_must_be_a_token) {
  expect_trouble("tokenizer.json: model.vocab has no token for the byte", [] {
    Bpe({{"a", 0}}, "tokenizer.json");
  });
}

TEST(Utf8, fronts_are_whole_cut_or_broken) {
  const auto is = [](std::string_view bytes, Utf8Front::Kind kind, size_t length) {
    const Utf8Front front = utf8_front(bytes);
    EXPECT_EQ(front.kind, kind) << bytes;
    EXPECT_EQ(front.length, length) << bytes;
  };
  is("a\xC3", Utf8Front::Kind::whole, 1);
  is("\xC3\xA9x", Utf8Front::Kind::whole, 2);
  is("\xEF\xBF\xBD", Utf8Front::Kind::whole, 3);
  is("\xF0\x9F\x99\x82", Utf8Front::Kind::whole, 4);
  is("\xF0\x9F\x99", Utf8Front::Kind::cut, 3);
  is("\xE6", Utf8Front::Kind::cut, 1);
  is("\x80\x80", Utf8Front::Kind::broken, 1);
  is("\xC0\x80", Utf8Front::Kind::broken, 1);      // overlong
  is("\xE0\x80\x80", Utf8Front::Kind::broken, 1);  // overlong
  is("\xED\xA0\x80", Utf8Front::Kind::broken, 1);  // a surrogate
  is("\xF4\x90\x80\x80", Utf8Front::Kind::broken, 1);
  is("\xF5\x80\x80\x80", Utf8Front::Kind::broken, 1);
  is("\xF0\x9F\x99x", Utf8Front::Kind::broken, 3);
}

TEST(Utf8, characters_are_taken_and_a_cut_one_is_left) {
  std::string bytes = "a\xFF\xF0\x9F\x99x\xE6\x9D", text;
  take_characters(bytes, text);
  EXPECT_EQ(text, "a\xEF\xBF\xBD\xEF\xBF\xBDx");
  EXPECT_EQ(bytes, "\xE6\x9D");
}

}  // namespace
}  // namespace lockstep
