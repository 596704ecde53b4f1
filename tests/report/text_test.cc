// What blocks become on a screen, and what is chosen of tensors to be shown there.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "src/report/element_filter.h"
#include "src/report/npy.h"
#include "src/report/render.h"
#include "src/report/trace_overview.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

TEST(RenderText, FoldsATableThatIsTooWide) {
  const Table table{{"k", "aaaa", "bbbb", "cccc"},
                    {{int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}}}};
  EXPECT_EQ(render_text({.blocks = {table}}, {.width = 14}),
            "k  aaaa  bbbb\n1     2     3\n\nk  cccc\n1     4\n");
  EXPECT_EQ(render_text({.blocks = {table}}, {.width = 16}), "k aaaa bbbb cccc\n1    2    3    4\n")
      << "blanks go first";
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
  EXPECT_EQ(number_in_four(0.83), ".83");
  EXPECT_EQ(number_in_four(0.996), "1.0");
  EXPECT_EQ(number_in_four(1.74), "1.7");
  EXPECT_EQ(number_in_four(17.4), "17");
  EXPECT_EQ(number_in_four(345.2), "345");
  EXPECT_EQ(number_in_four(23456), "2e4");
  EXPECT_EQ(number_in_four(0.00031), "3e-4");
  EXPECT_EQ(number_in_four(0), "0");
  EXPECT_EQ(number_in_four(NAN), "NaN");
  EXPECT_EQ(number_in_four(HUGE_VAL), "Inf");
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
