// Masks whose rule is known, and masks that have none.
#include "src/stats/shape_rule.h"

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
  std::vector<WrongElements::Axis> axes = {{"head", 6, 2}, {"dim", 64}};
};

using IsWrong = std::function<bool(const WrongElements::PlacedRow&, int64_t first, int64_t second)>;

// What of a row follows from the others of its pass, and a token from a small vocabulary.
void place(std::vector<WrongElements::PlacedRow>& rows) {
  for (auto from = rows.begin(), to = from; from != rows.end(); from = to) {
    to = std::find_if(from, rows.end(),
                      [&](const WrongElements::PlacedRow& r) { return r.pass != from->pass; });
    for (auto row = from; row != to; ++row) {
      row->of_pass = row - from;
      row->pass_rows = to - from;
      row->token = (row->row.position * 37 + row->row.request * 11 + 5) % 61;
      for (auto other = from; other != to; ++other)
        if (other->row.request == row->row.request)
          row->length = std::max<int64_t>(row->length, other->row.position + 1);
    }
  }
}

// Some requests, some passes of prefill, then decode; wrong where `is_wrong` says so.
WrongElements mask(const IsWrong& is_wrong, const Mask& of = {}) {
  WrongElements e{.axes = of.axes, .page_size = 16};
  int32_t pass = 0;
  const auto add = [&](int32_t request, int from, int to, bool decode) {
    for (int p = from; p < to; ++p)
      e.rows.push_back(
          {{request, p}, pass, decode, from > 0, request == 0, p == from, p + 1 == to});
  };
  for (int from = 0; from < *std::ranges::max_element(of.prompts); from += of.chunk, ++pass)
    for (int32_t r = 0; r < std::ssize(of.prompts); ++r) {
      const int length = of.prompts[static_cast<size_t>(r)];
      if (from < length) add(r, from, std::min(length, from + of.chunk), false);
    }
  for (int d = 0; d < of.decodes; ++d, ++pass)
    for (int32_t r = 0; r < std::ssize(of.prompts); ++r)
      add(r, of.prompts[static_cast<size_t>(r)] + d, of.prompts[static_cast<size_t>(r)] + d + 1,
          true);
  place(e.rows);
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

// Ragged: 90 + 81 + 56 rows in one pass of prefill, then three a pass.
const Mask kBatch{.prompts = {90, 81, 56}, .decodes = 6, .axes = {{"channel", 96}}};

TEST(ShapeRule, NamesRowsOfATile) {
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.of_pass % 32 == 31; }, kBatch),
            "rows of the pass % 32 == 31");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.of_pass % 8 == 5; }, kBatch),
            "rows of the pass % 8 == 5");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.of_pass % 64 >= 48; }, kBatch),
            "rows of the pass % 64 >= 48");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.of_pass >= 128; }, kBatch),
            "rows of the pass >= 128");
  EXPECT_EQ(
      rule([](auto& r, auto, auto) { return r.of_pass >= r.pass_rows - r.pass_rows % 64; }, kBatch),
      "in the last partial tile of 64 rows of a pass");
  EXPECT_EQ(rule([](auto& r, auto c, auto) { return r.of_pass % 16 == 15 && c >= 64; }, kBatch),
            "channels >= 64, rows of the pass % 16 == 15");
  // Several passes of prefill, each of which has its own tiles.
  Mask chunks = kBatch;
  chunks.chunk = 33;
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.of_pass % 32 == 31; }, chunks),
            "rows of the pass % 32 == 31");
}

TEST(ShapeRule, NamesTheTokenThatWasFed) {
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.token == 13; }, kBatch),
            "where token id 13 is fed");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.token >= 48; }, kBatch),
            "where token ids >= 48 are fed");
}

TEST(ShapeRule, NamesLengthsByPage) {
  // Prompts that fill their pages and prompts that do not, and lengths that come by in decode.
  const Mask lengths{.prompts = {32, 17, 48, 20, 16, 9}, .decodes = 18, .axes = {{"head", 6}}};
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.length % 16 == 0; }, lengths),
            "where length % 16 == 0");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.length % 16 == 1; }, lengths),
            "where length % 16 == 1");
  // In decode it is one more than the position. It says at once what takes two predicates there,
  // and where the position alone does, that is said.
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.decode && r.row.position % 16 == 15; },
                 {.prompts = {24, 17}, .decodes = 40}),
            "where length % 16 == 0");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position % 16 == 15; },
                 {.prompts = {24, 17}, .decodes = 40}),
            "positions p with p % 16 == 15");
}

// Rows of 60 tokens, each of which chose two of eight experts.
WrongElements chosen(bool by_choice,
                     const std::function<bool(const WrongElements::PlacedRow&)>& is_wrong) {
  std::mt19937 random(7);
  WrongElements e{.axes = {{"channel", 32}}, .page_size = 16};
  for (int32_t p = 0; p < 60; ++p) {
    const auto a = static_cast<int32_t>(random() % 8);
    const auto b = static_cast<int32_t>((static_cast<unsigned>(a) + 1 + random() % 7) % 8);
    for (int32_t c = 0; c < (by_choice ? 2 : 1); ++c) {
      WrongElements::PlacedRow& row =
          e.rows.emplace_back(WrongElements::PlacedRow{.row = {p / 30, p % 30}});
      row.of_pass = p, row.pass_rows = 60, row.token = p * 7 % 53, row.length = 30;
      if (by_choice) row.choice = c, row.expert = c == 0 ? a : b;
      if (!by_choice) row.experts = {a, b};
    }
  }
  for (size_t i = 0; i < e.rows.size(); ++i)
    if (is_wrong(e.rows[i]))
      e.wrong.push_back({static_cast<int64_t>(i), std::vector<bool>(32, true)});
  return e;
}

TEST(ShapeRule, NamesExperts) {
  const auto of_choices = [](auto is_wrong) { return shape_rule(chosen(true, is_wrong))->where; };
  EXPECT_EQ(of_choices([](const WrongElements::PlacedRow& r) { return r.expert == 3; }),
            "expert 3");
  EXPECT_EQ(of_choices([](const WrongElements::PlacedRow& r) { return r.expert >= 6; }),
            "experts >= 6");
  EXPECT_EQ(of_choices([](const WrongElements::PlacedRow& r) { return r.choice == 1; }),
            "choice 1");
  const auto of_rows = [](auto is_wrong) { return shape_rule(chosen(false, is_wrong))->where; };
  EXPECT_EQ(of_rows([](const WrongElements::PlacedRow& r) {
              return std::ranges::count(r.experts, 5) > 0;
            }),
            "rows that chose expert 5");
  EXPECT_EQ(of_rows([](const WrongElements::PlacedRow& r) { return r.row.request == 1; }),
            "request 1");
}

TEST(ShapeRule, PlainerRulesAreSaidWhereTheyAreTrueToo) {
  // Of one request whose rows are those of the pass, positions are.
  const Mask alone{.prompts = {130}, .decodes = 0, .axes = {{"channel", 96}}};
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position >= 64; }, alone),
            "positions >= 64");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position % 16 == 3; }, alone),
            "positions p with p % 16 == 3");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.position == 70; }, alone), "position 70");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.last; }, kBatch),
            "the last row of each request in a pass");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.decode; }, kBatch), "in decode");
  EXPECT_EQ(rule([](auto& r, auto, auto) { return r.row.request == 1; }, kBatch), "request 1");
}

TEST(ShapeRule, OfNoiseOfABatchThereIsNone) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    for (const unsigned one_in : {2u, 20u, 700u}) {
      std::mt19937 random(seed);
      EXPECT_EQ(rule([&](auto&, auto, auto) { return random() % one_in == 0; }, kBatch), "")
          << seed << " one in " << one_in;
    }
    // Of whole rows, some of a half, some of a tenth.
    for (const unsigned one_in : {2u, 10u}) {
      std::mt19937 random(seed);
      std::vector<bool> rows(400);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = random() % one_in == 0;
      const auto is_wrong = [&](auto& r, auto, auto) {
        return rows[static_cast<size_t>(r.row.request * 100 + r.row.position)];
      };
      EXPECT_EQ(rule(is_wrong, kBatch), "") << seed << " one row in " << one_in;
    }
    std::mt19937 random(seed);
    EXPECT_FALSE(shape_rule(
        chosen(true, [&](const WrongElements::PlacedRow&) { return random() % 3 == 0; })));
    EXPECT_FALSE(shape_rule(
        chosen(false, [&](const WrongElements::PlacedRow&) { return random() % 3 == 0; })));
  }
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
