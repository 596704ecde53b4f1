// The error of the logits is shared out: shares come to the whole, are those of errors whose share
// is known, lead to what is wrong, and are none of what was not kept.
#include "src/judge/error_budget.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "src/judge/error_sharer.h"
#include "src/judge/ledger.h"
#include "src/report/error_budget_blocks.h"
#include "src/report/output.h"
#include "src/report/report.h"
#include "tests/judged.h"
#include "tests/report/json_schema.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

JudgedRun run_of(const Checkpoint& checkpoint, DType dtype) {
  const int64_t vocab = checkpoint.config().vocab;
  JudgeOptions judge;
  judge.error_budget = true;
  return {.checkpoint = checkpoint,
          .reference = open_reference(),
          .engine = {.dtype = dtype, .page_size = 4, .page_order_seed = 3},
          .requests = {{.prompt = some_tokens(9, vocab, 1), .max_new = 4},
                       {.prompt = some_tokens(13, vocab, 2), .max_new = 3}},
          .judge = judge,
          .causes = false};
}

double sum_of(const ErrorBudget& budget) {
  double sum = budget.rest;
  for (const ErrorShare& share : budget.shares) sum += share.share;
  return sum;
}

void expect_whole(const ErrorBudget& budget, const std::string& what) {
  EXPECT_EQ(budget.none, "") << what;
  EXPECT_GT(budget.rms, 0) << what;
  EXPECT_NEAR(sum_of(budget), 1, 1e-9) << what;
  EXPECT_LT(std::fabs(budget.rest), 0.05) << what;
  EXPECT_EQ(budget.recorded, budget.expected) << what;
}

const ErrorShare& share_of(const ErrorBudget& budget, const Place& place) {
  const auto found = std::ranges::find(budget.shares, place, &ErrorShare::place);
  EXPECT_NE(found, budget.shares.end()) << text_of(place);
  return *found;
}

const ErrorShare& largest(const ErrorBudget& budget) {
  return *std::ranges::max_element(budget.shares, {}, &ErrorShare::share);
}

// The root mean square of what logits are off, from the model in fp64 that the judge has too, which
// runs the same passes with a cache.
double rms_of(const Checkpoint& checkpoint, const std::vector<Pass>& passes, DType dtype) {
  const auto model = open_reference().model(checkpoint, {.dtype = dtype}, DType::f64);
  double squares = 0;
  int64_t count = 0;
  for (const Pass& pass : passes) {
    Recorder recorder({}, false, [&](Pass exact) {
      const RecordedTensor* want = exact.find(point("logits"), -1);
      const RecordedTensor* got = pass.find(point("logits"), -1);
      if (!want || !got) return;
      for (int64_t i = 0; i < want->data.view().count(); ++i, ++count)
        squares += std::pow(value_at(got->data, i) - value_at(want->data, i), 2);
    });
    Probe probe(&recorder);
    model->run(pass.info, probe);
  }
  return std::sqrt(squares / static_cast<double>(count));
}

class ErrorBudgetOf : public testing::TestWithParam<const char*> {
 protected:
  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
};

// What is the same of every model: of one alone, unless all is run.
class ErrorBudgetOnce : public ErrorBudgetOf {};

TEST_P(ErrorBudgetOf, ACleanRunComesToTheWhole) {
  JudgedRun run = run_of(checkpoint_, DType::bf16);
  std::vector<Pass> passes;
  run.seen = [&](const Pass& pass, const std::vector<NodeId>&) { passes.push_back(pass); };
  const Result result = judged(run);
  ASSERT_TRUE(result.error_budget);
  expect_whole(*result.error_budget, GetParam());
  EXPECT_EQ(result.error_budget->rows, 7);
  EXPECT_NEAR(result.error_budget->rms, rms_of(checkpoint_, passes, DType::bf16),
              1e-9 * result.error_budget->rms);
  // Put into the exact model alone, the largest come to nearly the same: the second order is small.
  int64_t compared = 0;
  for (const ErrorShare& share : result.error_budget->shares) {
    if (!share.alone) continue;
    ++compared;
    EXPECT_NEAR(*share.alone, share.share, 0.2 * std::fabs(share.share)) << text_of(share.place);
  }
  EXPECT_EQ(compared, 10);
}

TEST_P(ErrorBudgetOnce, ARunComesToTheWholeHoweverItIsServed) {
  JudgedRun run = run_of(checkpoint_, DType::bf16);
  run.requests.push_back(run.requests[1]);
  run.requests.back().arrival = 2;
  run.requests.back().samples = 2;
  run.engine.prefix_cache = true;
  run.engine.chunk = 5;
  const Result result = judged(run);
  expect_whole(*result.error_budget, GetParam());
  EXPECT_EQ(result.error_budget->requests, 4);
}

TEST_P(ErrorBudgetOnce, ASeededBugHasTheMainShare) {
  const std::pair<const char*, Place> faults[] = {
      {"softmax-scale-missing@layer=2", {&point("attn.out"), 2}},
      {"rope-interleaved@layer=1", {&point("attn.q_rope"), 1}}};
  for (const auto& [fault, place] : faults) {
    JudgedRun run = run_of(checkpoint_, DType::bf16);
    run.faults = {parse_fault(fault)};
    const ErrorBudget budget = *judged(run).error_budget;
    expect_whole(budget, fault);
    double at_layer = 0;  // Q and K are turned by one op
    for (const ErrorShare& share : budget.shares)
      if (share.place.layer == place.layer && share.place.point->op == place.point->op)
        at_layer += share.share;
    EXPECT_GT(at_layer, 0.9) << fault;
    EXPECT_EQ(largest(budget).place.layer, place.layer) << fault;
    EXPECT_EQ(largest(budget).place.point->op, place.point->op) << fault;
  }
}

// In fp32 what is added to the results of two ops is all the error there is. Behind the last norm
// all is linear, so that the shares can be said: E = x w + y e, with w a column of the head's
// weights and e a logit.
TEST_P(ErrorBudgetOf, AnErrorOfKnownSizeHasTheKnownShare) {
  constexpr float kNorm = 0.5F, kLogit = 0.25F;
  constexpr int64_t kChannel = 5, kToken = 17;
  JudgedRun run = run_of(checkpoint_, DType::f32);
  run.ops = cpu_ops();
  run.ops->rms_norm = [inner = run.ops->rms_norm](const OpContext& context, TensorView out,
                                                  TensorView x, TensorView weight, float eps) {
    inner(context, out, x, weight, eps);
    if (context.point != "final.norm") return;
    for (int64_t row = 0; row < out.rows(); ++row)
      out.as<float>()[row * out.row_size() + kChannel] += kNorm;
  };
  run.ops->matmul = [inner = run.ops->matmul](const OpContext& context, TensorView out,
                                              TensorView x, WeightView weight, TensorView bias) {
    inner(context, out, x, weight, bias);
    if (context.point != "logits") return;
    for (int64_t row = 0; row < out.rows(); ++row)
      out.as<float>()[row * out.row_size() + kToken] += kLogit;
  };
  run.engine.pages = pages_for(run.requests, run.engine.page_size);
  const ErrorBudget budget = *judge_run(run).error_budget;
  const TensorView head = checkpoint_.tensor(checkpoint_.config().tied ? "model.embed_tokens.weight"
                                                                       : "lm_head.weight");
  double of_norm = 0, of_logits = 0, whole = 0;
  for (int64_t token = 0; token < head.rows(); ++token) {
    const double norm = kNorm * value_at(head, token * head.row_size() + kChannel);
    const double logit = token == kToken ? kLogit : 0, error = norm + logit;
    of_norm += error * norm;
    of_logits += error * logit;
    whole += error * error;
  }
  expect_whole(budget, "two errors");
  EXPECT_NEAR(share_of(budget, {&point("final.norm"), -1}).share, of_norm / whole, 1e-3);
  EXPECT_NEAR(share_of(budget, {&point("logits"), -1}).share, of_logits / whole, 1e-3);
  EXPECT_NEAR(budget.rms, std::sqrt(whole / static_cast<double>(head.rows())), 1e-4 * budget.rms);
}

TEST_P(ErrorBudgetOnce, NothingIsSharedOutOfLogitsThatAreNotFinite) {
  JudgedRun run = run_of(checkpoint_, DType::bf16);
  run.ops = cpu_ops();
  run.ops->silu_mul = [inner = run.ops->silu_mul](const OpContext& context, TensorView out,
                                                  TensorView gate, TensorView up) {
    inner(context, out, gate, up);
    if (context.layer == 3) out.as<BFloat16>()[1] = from_float<BFloat16>(std::nanf(""));
  };
  run.engine.pages = pages_for(run.requests, run.engine.page_size);
  // The first row of a pass is of request 0.
  const std::string why =
      "of request 0, layer 3 mlp.act is the first op whose result is not finite";
  const ErrorBudget other = *judge_run(run).error_budget;
  EXPECT_EQ(other.none, "");
  EXPECT_EQ(other.requests, 1);
  EXPECT_EQ(other.left_out, "1 of 2 requests: " + why);
  EXPECT_NEAR(sum_of(other), 1, 1e-9);
  run.requests.pop_back();
  const ErrorBudget none = *judge_run(run).error_budget;
  EXPECT_TRUE(none.shares.empty());
  EXPECT_EQ(none.none, why);
}

INSTANTIATE_TEST_SUITE_P(Models, ErrorBudgetOf, testing::Values("bard-qwen3", "bard-qwen2.5"));
INSTANTIATE_TEST_SUITE_P(Models, ErrorBudgetOnce,
                         testing::ValuesIn(whole() ? std::vector{"bard-qwen3", "bard-qwen2.5"}
                                                   : std::vector{"bard-qwen3"}));

TEST(ErrorBudget, OfEveryVariantOfTheModelComesToTheWhole) {
  for (const char* tiny : {"qwen2-sliding", "qwen3-bias-mqa", "qwen3-dynamic", "qwen3-yarn",
                           "qwen3-moe", "qwen3-untied-sharded"}) {
    const Checkpoint checkpoint = Checkpoint::open(data_path(std::string("tiny/") + tiny));
    expect_whole(*judged(run_of(checkpoint, DType::bf16)).error_budget, tiny);
  }
}

TEST(ErrorBudget, IsSaidInEveryForm) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const Result result = judged(run_of(checkpoint, DType::bf16));
  const Json rules = schema_of("result"), json = Json::parse(report_json(result));
  EXPECT_EQ(violation(json, rules, rules), "");
  const Json& budget = json["error_budget"];
  EXPECT_EQ(budget["shares"].size(), result.error_budget->shares.size());
  EXPECT_EQ(Json::parse(report_json(result_from_json(json.dump(), "a result")))["error_budget"],
            budget);
  const std::vector<PointShare> points = by_point(*result.error_budget);
  double sum = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(budget["by_point"][i]["point"], points[i].point->name);
    EXPECT_TRUE(i == 0 || points[i].share <= points[i - 1].share);
    sum += points[i].share;
  }
  EXPECT_NEAR(sum + result.error_budget->rest, 1, 1e-9);
  const std::string first = fmt::format("{:.1f} %", 100 * points[0].share);
  const std::string screen = text_of(document_of(result), "table");
  EXPECT_NE(screen.find(first), std::string::npos) << screen;
  EXPECT_NE(screen.find("where the error of the logits comes from"), std::string::npos);
  EXPECT_NE(page_of(result).find(first), std::string::npos);
  Result without = result;
  without.error_budget.reset();
  EXPECT_TRUE(Json::parse(report_json(without))["error_budget"].is_null());
  EXPECT_EQ(page_of(without).find("Where the error of the logits"), std::string::npos);
}

// The number before a " %".
int64_t tenths_before(const std::string& text, size_t end) {
  const size_t begin = text.find_last_of(' ', end - 1) + 1;
  return std::llround(10 * std::stod(text.substr(begin, end - begin)));
}

// The table of a budget, held to what a reader can add up.
void expect_adds_up(const ErrorBudget& budget) {
  int64_t sum = 0;
  for (const auto& row : points_table(budget).rows) {
    const std::string& share = std::get<std::string>(row[0]);
    const std::string& layers = std::get<std::string>(row[2]);
    const int64_t shown = tenths_before(share, share.find(" %"));
    sum += shown;
    int64_t parts = 0;
    for (size_t at = layers.find(" %"); at != layers.npos; at = layers.find(" %", at + 1))
      parts += tenths_before(layers, at);
    if (layers.find('%') != layers.npos) {
      EXPECT_EQ(parts, shown) << layers;
    }
  }
  EXPECT_EQ(sum, 1000);
}

TEST(ErrorBudgetTable, AddsUpAsItIsRead) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const Graph graph = graph_of(Checkpoint::open(data_path("bard-qwen3")).config());
  for (int i = 0; i < 200; ++i) {
    ErrorBudget budget;
    double sum = 0;
    for (const Place& place : graph.places())
      sum += budget.shares.emplace_back(ErrorShare{place, std::pow(uniform(random), 5)}).share;
    if (std::fabs(sum) < 1) continue;
    for (ErrorShare& share : budget.shares) share.share *= 0.98 / sum;
    budget.rest = 0.02;
    expect_adds_up(budget);
  }
}

TEST(ErrorBudgetTable, SaysWhatLayersTakeBack) {
  ErrorBudget budget;
  for (const auto& [layer, share] : {std::pair{0, 1.2}, {1, -0.1}, {2, -0.105}})
    budget.shares.push_back({{&point("mlp.up"), layer}, share});
  budget.rest = 0.005;
  const Table table = points_table(budget);
  EXPECT_EQ(std::get<std::string>(table.rows[0][0]), "99.5 %");
  EXPECT_EQ(std::get<std::string>(table.rows[0][2]), "layer 0: 120.0 %, others -20.5 %");
  EXPECT_EQ(std::get<std::string>(table.rows[1][0]), "0.5 %");
  EXPECT_NE(scope_text(budget).find("100.0 % in all"), std::string::npos) << scope_text(budget);
}

TEST(ErrorBudgetTable, CountsWhatWasNotRecorded) {
  ErrorBudget budget;
  ErrorShare logits{{&point("logits"), -1}, 1};
  for (const char* name : {"mlp.gate", "mlp.up", "mlp.act", "mlp.down"})
    for (const int layer : {1, 2}) logits.with.push_back({find_point(name), layer});
  budget.shares = {logits};
  EXPECT_EQ(std::get<std::string>(points_table(budget).rows[0][1]),
            "logits (with 4 points of layers 1-2, not recorded)");
}

class Lacking : public testing::Test {
 protected:
  // The budget of passes from which tensors are taken.
  ErrorBudget without(const std::function<bool(const RecordedTensor&)>& is_taken) {
    const JudgedRun run = run_of(checkpoint_, DType::bf16);
    const auto oracle = run.reference.oracle(checkpoint_, {});
    ErrorBudgetMaker maker(oracle->graph());
    for (Pass pass : serve(checkpoint_, run.engine, run.requests).passes) {
      std::erase_if(pass.tensors, is_taken);
      maker.add(pass);
    }
    return maker.make(*run.reference.error_sharer(checkpoint_, {}), 0);
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path("bard-qwen3"));
};

TEST_F(Lacking, OpsCountAtTheNextThatWasRecorded) {
  const ErrorBudget all = without([](const RecordedTensor&) { return false; });
  const ErrorBudget some = without([](const RecordedTensor& tensor) {
    return *tensor.point == point("mlp.gate") || *tensor.point == point("mlp.up") ||
           *tensor.point == point("mlp.act");
  });
  expect_whole(all, "all");
  EXPECT_LT(some.recorded, some.expected);
  EXPECT_LT(std::fabs(some.rest), 0.05);
  const Place down{&point("mlp.down"), 4};
  EXPECT_EQ(
      share_of(some, down).with,
      (std::vector<Place>{{&point("mlp.gate"), 4}, {&point("mlp.up"), 4}, {&point("mlp.act"), 4}}));
  double apart = 0;
  for (const char* name : {"mlp.gate", "mlp.up", "mlp.act", "mlp.down"})
    apart += share_of(all, {find_point(name), 4}).share;
  EXPECT_NEAR(share_of(some, down).share, apart, 0.01);
}

TEST_F(Lacking, LogitsAloneAreNotSharedOut) {
  const ErrorBudget alone =
      without([](const RecordedTensor& tensor) { return *tensor.point != point("logits"); });
  EXPECT_NE(alone.none.find("the logits alone were kept"), std::string::npos) << alone.none;
  EXPECT_TRUE(alone.shares.empty());
  const ErrorBudget none =
      without([](const RecordedTensor& tensor) { return *tensor.point == point("logits"); });
  EXPECT_NE(none.none.find("the numbers of the logits were not kept"), std::string::npos);
  EXPECT_TRUE(none.shares.empty());
}

}  // namespace
}  // namespace lockstep
