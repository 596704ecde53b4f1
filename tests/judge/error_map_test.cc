// What the wrong elements of a place have in common, over the passes and requests of a run.
#include "src/judge/error_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "src/judge/judge.h"
#include "tests/judge/fake_model.h"

namespace lockstep {
namespace {

Result judged(ReferenceModel& model) {
  const FakeRun run = fake_run(model, DType::bf16);
  FakeOracle oracle;
  Judge judge(run.manifest, oracle, nullptr, nullptr, {});
  for (const Pass& pass : run.passes) judge.judge(pass);
  return judge.finish(run.requests, true);
}

// The findings of a place, all of which must say the same.
std::string where(const Result& result, std::string_view name) {
  std::string text;
  for (const Finding& f : result.findings) {
    if (f.node.place.point->name != name) continue;
    const std::string says = f.shape ? f.shape->where : "";
    EXPECT_TRUE(text.empty() || text == says) << name << ": " << text << " and " << says;
    text = says;
  }
  return text;
}

TEST(ErrorMap, HasOneRuleAPlace) {
  FakeModel model(DType::bf16, [](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (p.layer != 1) return;
    if (p.point->name == "attn.q_norm")
      for (size_t i = 0; i < v.size(); ++i)
        if (i / kDim % kHeads == 2) v[i] += 3;
    if (p.point->name == "mlp.up")  // of the second request's rows of prefill
      for (size_t i = 13 * kInner; i < v.size(); ++i) v[i] = std::nan("");
  });
  const Result result = judged(model);
  ASSERT_TRUE(result.first && result.first->shape);
  EXPECT_EQ(result.first->shape->where, "head 2");
  EXPECT_EQ(result.first->shape->precision, 1);
  EXPECT_NE(result.story.find("wrong: head 2"), std::string::npos) << result.story;
  EXPECT_EQ(where(result, "attn.q_norm"), "head 2");
  EXPECT_EQ(where(result, "mlp.up"), "request 1, in prefill");
  EXPECT_EQ(where(result, "mlp.act"), "");  // NaN by its inputs, which is no error of its own
}

TEST(ErrorMap, OfTheCacheCountsPositionsThatAreRead) {
  FakeModel model(DType::bf16);
  model.before_reading = [](FakeModel& m, int layer) {
    if (layer == 1)
      for (size_t p = 4; p < m.lane(1, 1).size(); ++p) m.lane(1, 1)[p] = m.lane(1, 0)[p];
  };
  EXPECT_EQ(where(judged(model), "attn.kv"), "request 1, positions >= 4");
}

TEST(ErrorMap, LeavesOutWhatWasNotJudged) {
  // Two requests of three rows; one row is wrong, and the other request may or may not be known.
  const auto rule = [](Verdict other) {
    Pass pass;
    pass.info.rows = {{{0, 0}}, {{0, 1}}, {{0, 2}}, {{1, 0}}, {{1, 1}}, {{1, 2}}};
    const Place place{&point("mlp.up"), 0};
    RecordedTensor& tensor = pass.tensors.emplace_back();
    tensor.point = place.point, tensor.layer = 0, tensor.shape = {6, 64};
    for (const PassRow& r : pass.info.rows) tensor.rows.push_back(r.row);
    const Selection all;
    const PassView seen(pass, all);
    ErrorMap map(0);
    const size_t at = map.begin(seen);
    NodeOutcome outcome;
    outcome.verdict = Verdict::introduced;
    for (int64_t row = 0; row < 3; ++row)
      outcome.wrong.push_back({row, std::vector<bool>(64, true)});
    map.add(at, place, {64}, outcome);
    outcome = {};
    outcome.request = 1, outcome.verdict = other;
    map.add(at, place, {64}, outcome);
    return map.rule_of(place).value_or(ShapeRule{}).where;
  };
  EXPECT_EQ(rule(Verdict::rounding), "request 0");
  EXPECT_EQ(rule(Verdict::inconclusive), "");  // all that is known is wrong
  EXPECT_EQ(rule(Verdict::structural), "");
}

// One pass of two requests, 40 and 30 rows, in a layer whose tokens choose two of eight experts.
std::string rule_of_experts(
    std::string_view point_name, const Shape& row_shape,
    const std::function<std::vector<bool>(size_t row, int32_t first, int32_t second)>& is_wrong) {
  Pass pass;
  std::vector<Row> rows;
  for (int32_t i = 0; i < 70; ++i) {
    rows.push_back({i / 40, i % 40});
    pass.info.rows.push_back({rows.back(), (i * 29 + 7) % 97});
  }
  Tensor ids({70, 2}, DType::i32);
  std::minstd_rand random(3);
  for (int64_t i = 0; i < 70; ++i) {
    ids.as<int32_t>()[2 * i] = static_cast<int32_t>(random() % 8);
    ids.as<int32_t>()[2 * i + 1] =
        static_cast<int32_t>((ids.as<int32_t>()[2 * i] + 1 + static_cast<int>(random() % 7)) % 8);
  }
  const std::vector<int32_t> chosen(ids.as<int32_t>(), ids.as<int32_t>() + 140);
  pass.tensors.push_back({.point = &point("mlp.experts"),
                          .layer = 0,
                          .rows = rows,
                          .dtype = DType::i32,
                          .shape = {70, 2},
                          .data = std::move(ids)});
  const Selection all;
  const PassView seen(pass, all);
  ErrorMap map(16);
  const size_t at = map.begin(seen);
  const Place place{find_point(point_name), 0};
  for (int32_t request = 0; request < 2; ++request) {
    NodeOutcome outcome;
    outcome.request = request, outcome.verdict = Verdict::introduced;
    for (size_t i = 0; i < 70; ++i) {
      if (rows[i].request != request) continue;
      std::vector<bool> wrong = is_wrong(i, chosen[2 * i], chosen[2 * i + 1]);
      if (std::ranges::count(wrong, true) > 0)
        outcome.wrong.push_back({rows[i].position, std::move(wrong)});
    }
    map.add(at, place, row_shape, outcome);
  }
  return map.rule_of(place).value_or(ShapeRule{}).where;
}

TEST(ErrorMap, KnowsTheExpertOfEachChoiceAndTheTileOfEachRow) {
  // Of [choice, channel], where that choice is expert 5.
  EXPECT_EQ(rule_of_experts("mlp.expert_up", {2, 16},
                            [](size_t, int32_t first, int32_t second) {
                              std::vector<bool> wrong(32, false);
                              std::fill_n(wrong.begin(), 16, first == 5);
                              std::fill_n(wrong.begin() + 16, 16, second == 5);
                              return wrong;
                            }),
            "expert 5");
  // Of a sum over the choices.
  EXPECT_EQ(rule_of_experts("mlp.combine", {16},
                            [](size_t, int32_t first, int32_t second) {
                              return std::vector<bool>(16, first == 5 || second == 5);
                            }),
            "rows that chose expert 5");
  EXPECT_EQ(rule_of_experts(
                "mlp.combine", {16},
                [](size_t row, int32_t, int32_t) { return std::vector<bool>(16, row % 16 == 15); }),
            "rows of the pass % 16 == 15");
  EXPECT_EQ(rule_of_experts("mlp.combine", {16},
                            [](size_t row, int32_t, int32_t) {
                              return std::vector<bool>(16, (row * 29 + 7) % 97 >= 80);
                            }),
            "where token ids >= 80 are fed");
}

// Passes of one request, one row each, wrong from a position on.
TEST(ErrorMap, ForgetsWhatComesAfterItsBounds) {
  ErrorMap map(0);
  const Place place{&point("mlp.up"), 0};
  const Selection all;
  constexpr int32_t kPasses = ErrorMap::kMostRows + 10;
  for (int32_t i = 0; i < kPasses; ++i) {
    Pass pass;
    pass.info = {.pass = i, .rows = {{{0, i}, 1, i, Phase::decode}}, .logit_rows = {0}};
    pass.tensors.push_back({.point = place.point, .layer = 0, .rows = {{0, i}}, .shape = {1, 4}});
    const PassView seen(pass, all);
    const size_t at = map.begin(seen);
    NodeOutcome outcome;
    outcome.pass = i;
    if (i >= 100) outcome.verdict = Verdict::introduced, outcome.wrong = {{0, {true, 1, 1, 1}}};
    map.add(at, place, {4}, outcome);
  }
  const auto rule = map.rule_of(place);
  ASSERT_TRUE(rule);
  EXPECT_EQ(rule->where, "positions >= 100");
  EXPECT_TRUE(map.has({.node = {.place = place, .pass = 200}}));
  EXPECT_FALSE(map.has({.node = {.place = place, .pass = 99}}));
  EXPECT_FALSE(map.has({.node = {.place = place, .pass = kPasses - 1}}));
  EXPECT_FALSE(map.rule_of({&point("mlp.up"), 1}));
}

}  // namespace
}  // namespace lockstep
