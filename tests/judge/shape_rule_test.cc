// Masks whose rule is known, and masks that have none.
#include "src/judge/shape_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace lockstep {
namespace {

struct Mask {
  std::vector<int> prompts = {24, 17};
  int decodes = 4;
  int chunk = 1000;
  std::vector<Axis> axes = {{"head", 6, 2}, {"dim", 64}};
};

using IsWrong = std::function<bool(const PlacedRow&, int64_t first, int64_t second)>;

// Two requests, some passes of prefill, then decode; wrong where `is_wrong` says so.
WrongElements mask(const IsWrong& is_wrong, const Mask& of = {}) {
  WrongElements e{.axes = of.axes, .page_size = 16};
  int32_t pass = 0;
  const auto add = [&](int32_t request, int from, int to, bool decode) {
    for (int p = from; p < to; ++p)
      e.rows.push_back(
          {{request, p}, pass, decode, from > 0, request == 0, p == from, p + 1 == to});
  };
  for (int from = 0; from < 24; from += of.chunk, ++pass)
    for (int32_t r = 0; r < std::ssize(of.prompts); ++r) {
      const int length = of.prompts[static_cast<size_t>(r)];
      if (from < length) add(r, from, std::min(length, from + of.chunk), false);
    }
  for (int d = 0; d < of.decodes; ++d, ++pass)
    for (int32_t r = 0; r < std::ssize(of.prompts); ++r)
      add(r, of.prompts[static_cast<size_t>(r)] + d, of.prompts[static_cast<size_t>(r)] + d + 1,
          true);
  const int64_t inner = e.axes.size() > 1 ? e.axes[1].size : 1;
  for (size_t i = 0; i < e.rows.size(); ++i) {
    WrongRow row{static_cast<int64_t>(i), {}};
    for (int64_t j = 0; j < e.axes[0].size * inner; ++j)
      row.elements.push_back(is_wrong(e.rows[i], j / inner, j % inner));
    if (std::ranges::count(row.elements, true) > 0) e.wrong.push_back(row);
  }
  return e;
}

std::string rule(const IsWrong& is_wrong, const Mask& of = {}) {
  const auto found = shape_rule(mask(is_wrong, of));
  return found ? found->where : "";
}

TEST(ShapeRule, NamesPositions) {
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position >= 1; }), "positions >= 1");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position >= 16; }), "positions >= 16");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position <= 9; }), "positions <= 9");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position == 7; }), "position 7");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position % 16 == 3; }),
            "positions p with p % 16 == 3");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position == 3 || r.row.position == 14; }),
            "positions 3, 14");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position % 16 == 15; },
                 {.prompts = {90, 81}, .chunk = 200}),
            "positions p with p % 16 == 15");
}

TEST(ShapeRule, NamesRequestsPassesAndRows) {
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.request == 1; }), "request 1");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.request > 0; },
                 {.prompts = {20, 9, 12, 8, 7, 6, 5}}),
            "requests >= 1");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.decode; }), "in decode");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return !r.decode; }), "in prefill");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.continues; }, {.chunk = 10}),
            "in passes that continue a request");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.last; }),
            "the last row of each request in a pass");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.pass == 2; }), "pass 2");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.request == 1 && r.row.position >= 8; }),
            "request 1, positions >= 8");
}

TEST(ShapeRule, NamesHeadsAndDims) {
  EXPECT_EQ(rule([](auto&, auto h, auto) { return h == 4; }), "head 4");
  EXPECT_EQ(rule([](auto&, auto h, auto) { return h % 2 != h / 3; }),
            "heads h with h % 2 != h / 3");
  EXPECT_EQ(rule([](auto&, auto, auto d) { return d < 32; }), "dims <= 31");
  EXPECT_EQ(rule([](auto&, auto, auto d) { return d >= 48; }), "dims >= 48");
  EXPECT_EQ(rule([](auto&, auto, auto d) { return d % 2 == 1; }), "dims d with d % 2 == 1");
  EXPECT_EQ(rule([](auto&, auto, auto d) { return d % 32 < 10; }), "dims d with d % 32 <= 9");
  EXPECT_EQ(rule([](auto&, auto, auto d) { return d / 16 == 1; }), "dims 16..31");
  EXPECT_EQ(rule([](auto&, auto, auto d) { return d == 5 || d == 17; }), "dims 5, 17");
  EXPECT_EQ(rule([](auto& r, auto, auto d) { return d < 32 && r.row.position >= 1; }),
            "dims <= 31, positions >= 1");
  EXPECT_EQ(rule([](auto& r, auto h, auto) { return h == 2 && r.decode; }), "head 2, in decode");
}

TEST(ShapeRule, NamesChannelsOfRowsWithoutHeads) {
  const Mask channels{.axes = {{"channel", 192}}};
  EXPECT_EQ(rule([](auto&, auto c, auto) { return c == 100; }, channels), "channel 100");
  EXPECT_EQ(rule([](auto&, auto c, auto) { return c >= 128; }, channels), "channels >= 128");
}

TEST(ShapeRule, OfWholeRowsNeedsNoAxes) {
  WrongElements e = mask([](auto& r, auto, auto) { return r.row.request == 1; });
  e.axes.clear();
  for (WrongRow& row : e.wrong) row.elements = {true};
  const auto found = shape_rule(e);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->where, "request 1");
  EXPECT_EQ(found->precision, 1);
}

TEST(ShapeRule, SaysHowWellItFits) {
  std::mt19937 random(3);
  const auto some =
      shape_rule(mask([&](auto& r, auto, auto) { return r.decode && random() % 2 == 0; }));
  ASSERT_TRUE(some);
  EXPECT_EQ(some->where, "in decode");
  EXPECT_NEAR(some->precision, 0.5, 0.05);
  EXPECT_EQ(some->recall, 1);
  // And where one element in a hundred lies elsewhere.
  const auto most = shape_rule(mask([&](auto& r, auto h, auto) {
    return r.row.request == 1 || (h == 0 && r.row.position == 3 && random() % 2 == 0);
  }));
  ASSERT_TRUE(most);
  EXPECT_EQ(most->where, "request 1");
  EXPECT_EQ(most->precision, 1);
  EXPECT_LT(most->recall, 1);
  EXPECT_GT(most->recall, 0.99);
}

TEST(ShapeRule, OneElementIsOneElement) {
  EXPECT_EQ(rule([](auto& r, auto h, auto d) {
              return r.row.request == 0 && r.row.position == 5 && h == 3 && d == 2;
            }),
            "one element alone");
}

TEST(ShapeRule, OfNoiseThereIsNone) {
  // Of every density, and by whole rows or heads of single rows.
  for (unsigned seed = 0; seed < 40; ++seed) {
    for (const unsigned one_in : {2u, 10u, 300u, 5000u}) {
      std::mt19937 random(seed);
      const auto noise = mask([&](auto&, auto, auto) { return random() % one_in == 0; });
      const auto found = shape_rule(noise);
      if (found && found->where != "one element alone")
        ADD_FAILURE() << found->where << " seed " << seed << " one in " << one_in;
    }
    std::mt19937 random(seed);
    std::vector<bool> rows(200);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = random() % 2 == 0;
    EXPECT_EQ(rule([&](auto& r, auto, auto) {
                return rows[static_cast<size_t>(r.row.request * 100 + r.row.position)];
              }),
              "")
        << seed;
  }
  EXPECT_EQ(rule([](auto&, auto, auto) { return true; }), "");
  EXPECT_EQ(rule([](auto&, auto, auto) { return false; }), "");
  EXPECT_FALSE(shape_rule({}));
}

TEST(ShapeRule, OfWhichNearlyAllIsRightIsNone) {
  // Ten elements of request 1: it is true of them, and tells nobody where to look.
  std::mt19937 random(1);
  EXPECT_EQ(rule([&](auto& r, auto, auto) { return r.row.request == 1 && random() % 50 == 0; }),
            "");
}

TEST(ShapeRule, IsTheSameEveryTime) {
  std::mt19937 random(5);
  const WrongElements e = mask([&](auto& r, auto h, auto d) {
    return (r.row.position >= 3 && h != 1 && d % 32 < 20) && random() % 3 > 0;
  });
  const auto first = shape_rule(e), second = shape_rule(e);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->where, second->where);
  EXPECT_EQ(first->precision, second->precision);
}

}  // namespace
}  // namespace lockstep
