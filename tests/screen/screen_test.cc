// Text in the columns of a terminal.
#include "src/screen/screen.h"

#include <gtest/gtest.h>

#include "src/screen/wrap.h"

namespace lockstep {
namespace {

TEST(Screen, IsTheTerminalsAndPlainWhereThereIsNone) {
  EXPECT_EQ(screen_from(true, 132, "90", nullptr, "xterm").width, 132);
  EXPECT_EQ(screen_from(true, 0, "90", nullptr, "xterm").width, 90);
  EXPECT_EQ(screen_from(true, 0, "wide", nullptr, "xterm").width, 80);
  EXPECT_EQ(screen_from(false, 132, "90", nullptr, "xterm").width, 80);
  EXPECT_TRUE(screen_from(true, 80, nullptr, nullptr, "xterm").colour);
  EXPECT_TRUE(screen_from(true, 80, nullptr, "", "xterm").colour) << "an empty NO_COLOR is none";
  EXPECT_FALSE(screen_from(true, 80, nullptr, "1", "xterm").colour);
  EXPECT_FALSE(screen_from(true, 80, nullptr, nullptr, "dumb").colour);
  EXPECT_FALSE(screen_from(true, 80, nullptr, nullptr, nullptr).colour);
  EXPECT_FALSE(screen_from(false, 80, nullptr, nullptr, "xterm").colour);
  EXPECT_EQ(Screen{.width = 300}.prose_width(), 120u) << "no longer lines than people can read";
  EXPECT_EQ(Screen{.width = 20}.prose_width(), 40u);
}

TEST(Wrap, BreaksAtBlanksAndInsideOfWhatIsTooLong) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(wrapped("one two three", 7), (Lines{"one two", "three"}));
  EXPECT_EQ(wrapped("one two three", 13), (Lines{"one two three"}));
  EXPECT_EQ(wrapped("abcdefgh ij", 3), (Lines{"abc", "def", "gh", "ij"}));
  EXPECT_EQ(wrapped("a\n\nb", 5), (Lines{"a", "", "b"}));
  EXPECT_EQ(wrapped("name   one two three", 16), (Lines{"name   one two", "three"}));
  EXPECT_EQ(wrapped("some names   one two", 16), (Lines{"some names", "one two"}));
  EXPECT_EQ(wrapped("position 4, \" the\"", 14), (Lines{"position 4,", "\" the\""}));
  EXPECT_EQ(wrapped("", 5), (Lines{""}));
  EXPECT_EQ(indented("one two three", 2, 9), "one two\n  three");
  EXPECT_EQ(indented("a b", 30, 10), "a\n" + std::string(30, ' ') + "b") << "no room is left";
  EXPECT_EQ(wrapped("日本語の文", 4), (Lines{"日本", "語の", "文"})) << "two columns each";
  EXPECT_EQ(columns_of("e\u0301t\u00e9"), 3u) << "a mark that combines has no width";
}

TEST(Wrap, LeavesNothingThatMovesTheCursor) {
  EXPECT_EQ(screen_text("a\033[2Jb\nc\t\x7f"), "a\\x1b[2Jb\\nc\\t\\x7f");
  EXPECT_EQ(screen_text("a\nb", /*keep_lines=*/true), "a\nb");
  EXPECT_EQ(screen_text("\xff\xc0\xaf ok"), "\\xff\\xc0\\xaf ok");
  EXPECT_EQ(screen_text("\u202eevil"), "\\u202eevil") << "it would turn the line around";
  EXPECT_EQ(in_quotes(" the"), "\" the\"");
  EXPECT_EQ(columns_of(in_quotes(std::string(100, 'x'), 10)), 12u);
}

TEST(Wrap, BreaksCommandsWhereAShellGoesOn) {
  EXPECT_EQ(wrapped_command("run -m DIR", 4, 80), "run -m DIR");
  EXPECT_EQ(wrapped_command("run --model DIR --prompt 'a --b c'", 4, 20),
            "run --model DIR \\\n    --prompt 'a --b c'");
}

}  // namespace
}  // namespace lockstep
