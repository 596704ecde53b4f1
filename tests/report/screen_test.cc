// What text becomes on a screen: columns, lines, tables, pictures of numbers.
#include "src/report/screen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "src/report/element_filter.h"
#include "src/report/npy.h"
#include "src/report/render.h"
#include "src/report/trace_overview.h"
#include "src/report/wrap.h"
#include "tests/helpers.h"

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

TEST(RenderText, FoldsATableThatIsTooWide) {
  const Table table{{"k", "aaaa", "bbbb", "cccc"},
                    {{int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}}}};
  EXPECT_EQ(render_text({.blocks = {table}}, {.width = 14}),
            "k  aaaa  bbbb\n1     2     3\n\nk  cccc\n1     4\n");
}

TEST(RenderText, BreaksAColumnOfTextWhereTheTableThenFits) {
  const Table table{{"n", "says"}, {{int64_t{1}, "some words that are too many"}}};
  EXPECT_EQ(render_text({.blocks = {table}}, {.width = 20}),
            "n  says\n1  some words that\n   are too many\n");
}

TEST(RenderText, PutsValuesBelowTheirNamesWhereThereIsNoRoom) {
  const KeyValues pairs{{{"untested", "masks of chunks"}}, 0, 9};
  EXPECT_EQ(render_text({.blocks = {pairs}}, {.width = 40}), "untested masks of chunks\n");
  EXPECT_EQ(render_text({.blocks = {pairs}}, {.width = 20}), "untested\n  masks of chunks\n");
}

TEST(ShortNumber, HasFourCharactersAtMost) {
  EXPECT_EQ(short_number(0.83), ".83");
  EXPECT_EQ(short_number(0.996), "1.0");
  EXPECT_EQ(short_number(1.74), "1.7");
  EXPECT_EQ(short_number(17.4), "17");
  EXPECT_EQ(short_number(345.2), "345");
  EXPECT_EQ(short_number(23456), "2e4");
  EXPECT_EQ(short_number(0.00031), "3e-4");
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(NAN), "NaN");
  EXPECT_EQ(short_number(HUGE_VAL), "Inf");
}

RecordedTensor queries() {
  return {.point = &point("attn.q"), .layer = 0, .rows = {{0, 5}}, .shape = {1, 4, 8}};
}

TEST(ElementFilter, TakesHeadsAndSlices) {
  EXPECT_EQ(ElementFilter("", "").offsets(queries()).size(), 32u);
  EXPECT_EQ(ElementFilter("3", "").extents(queries()), (std::vector<int64_t>{1, 8}));
  EXPECT_EQ(ElementFilter("0,2-3", "").extents(queries()), (std::vector<int64_t>{3, 8}));
  const ElementFilter slice("", "[5, 3, :2]");
  EXPECT_EQ(slice.offsets(queries()), (std::vector<int64_t>{24, 25}));
  EXPECT_TRUE(slice.has(Row{7, 5}));
  EXPECT_FALSE(slice.has(Row{7, 6}));
  EXPECT_TRUE(ElementFilter("", "5:7").has(Row{0, 6}));
  EXPECT_FALSE(ElementFilter("", "5:7").has(Row{0, 7})) << "the end is not part of a range";
}

TEST(ElementFilter, RefusesWhatIsNoSelection) {
  for (const char* slice : {"a", "[1, ]", "3:2", "-1", "::"})
    EXPECT_NE(error_of([&] { ElementFilter("", slice); }), "") << slice;
  for (const char* head : {"x", "3-1", "1-"})
    EXPECT_NE(error_of([&] { ElementFilter(head, ""); }), "") << head;
  EXPECT_NE(error_of([] { ElementFilter("4", "").offsets(queries()); }), "") << "there are 4 heads";
  EXPECT_NE(error_of([] { ElementFilter("", "0, 0, 0, 0").offsets(queries()); }), "");
  RecordedTensor hidden{.point = &point("attn.o"), .layer = 0, .rows = {{0, 0}}, .shape = {1, 8}};
  EXPECT_NE(error_of([&] { ElementFilter("0", "").offsets(hidden); }), "");
}

TEST(Npy, IsWhatNumpyReads) {
  const float numbers[] = {1, 2.5, -3};
  const std::string bytes = npy_of(numbers, {3});
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header = static_cast<uint8_t>(bytes[8]) + 256u * static_cast<uint8_t>(bytes[9]);
  EXPECT_EQ((10 + header) % 64, 0u);
  EXPECT_EQ(bytes[10 + header - 1], '\n');
  EXPECT_NE(bytes.find("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"),
            std::string::npos);
  float back[3];
  ASSERT_EQ(bytes.size(), 10 + header + sizeof back);
  std::memcpy(back, bytes.data() + 10 + header, sizeof back);
  EXPECT_EQ(back[1], 2.5f);
}

}  // namespace
}  // namespace lockstep
