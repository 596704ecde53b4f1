// Traces of an attention that was merged of shares, in which something that it shows of them is
// missing, or not as the model has it.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>

#include "src/judge/story.h"
#include "src/schedule/make_schedule.h"
#include "src/weights/qwen_graph.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

const Checkpoint& bard() {
  static const Checkpoint open = Checkpoint::open(data_path("bard-qwen3"));
  return open;
}

// The passes of a right run in three shares.
const std::vector<Pass>& right_passes() {
  static const std::vector<Pass> kept = [] {
    std::vector<Pass> passes;
    std::vector<Request> requests = {
        {.prompt = some_tokens(21, bard().config().vocab, 1), .max_new = 2},
        {.prompt = some_tokens(38, bard().config().vocab, 2), .max_new = 2}};
    EngineOptions engine{.dtype = DType::bf16, .page_size = 8, .page_order_seed = 3};
    engine.pages = pages_for(requests, engine.page_size);
    judge_run(
        {.checkpoint = bard(),
         .reference = open_reference(),
         .engine = engine,
         .step = InterpreterOptions{make_schedule(scheduled_model(bard().config()),
                                                  {.queues = 2, .kv_shares = 3})},
         .requests = requests,
         .seen = [&](const Pass& pass, const std::vector<NodeId>&) { passes.push_back(pass); },
         .audit = false,
         .causes = false});
    return passes;
  }();
  return kept;
}

const Place kPartial{&point("attn.partial"), 1}, kLse{&point("attn.lse"), 1},
    kOut{&point("attn.out"), 1};

bool is_at(const RecordedTensor& tensor, const Place& place) {
  return *tensor.point == *place.point && tensor.layer == place.layer;
}

// Everything that the attention of layer 1 shows, after `change` of each tensor.
Result judged_after(const std::function<void(RecordedTensor&)>& change,
                    const std::set<std::string_view>& never_shown = {}) {
  const auto oracle = open_reference().oracle(bard(), {.dtype = DType::bf16});
  const auto is_shown = [&](std::string_view name) { return !never_shown.contains(name); };
  Judge judge({.provenance = {{"page_size", "8"}},
               .graph = qwen_graph_of(bard().config(), false, /*in_shares=*/true),
               .dtype = DType::bf16,
               .level = TraceLevel::full},
              *oracle, nullptr, nullptr,
              {.selection = Selection("attn.lse,attn.partial,attn.out", "1", "", ""),
               .recorded = [&](const Place& at) { return is_shown(at.point->name); }});
  for (Pass pass : right_passes()) {
    std::erase_if(pass.tensors, [&](const RecordedTensor& t) { return !is_shown(t.point->name); });
    for (RecordedTensor& tensor : pass.tensors) change(tensor);
    std::erase_if(pass.tensors, [](const RecordedTensor& t) { return t.point == nullptr; });
    judge.judge(pass);
  }
  return judge.finish({}, true);
}

std::set<std::string_view> wrong_points(const Result& result) {
  std::set<std::string_view> wrong;
  for (const Finding& finding : result.findings) wrong.insert(finding.node.place.point->name);
  return wrong;
}

using Points = std::set<std::string_view>;

// The passes share their memory with who kept them.
void halve(RecordedTensor& tensor, const Place& place) {
  if (!is_at(tensor, place)) return;
  Tensor halves(tensor.shape, DType::bf16);
  for (int64_t i = 0; i < tensor.shape.count(); ++i) {
    const uint16_t bits = tensor.data.as<uint16_t>()[i];
    halves.as<uint16_t>()[i] = (bits & 0x7F80) == 0 ? bits : bits - 0x0080;  // an exponent less
  }
  tensor.data = halves;
}

TEST(ShownShares, AreRightAsTheyAre) {
  const Result result = judged_after([](RecordedTensor&) {});
  EXPECT_TRUE(result.findings.empty()) << result.story;
  EXPECT_EQ(result.judged, result.expected);
}

TEST(ShownShares, AreOfAnAttentionThatMayBeMissing) {
  const Result result = judged_after([](RecordedTensor& tensor) {
    if (is_at(tensor, kOut)) tensor.point = nullptr;
  });
  EXPECT_EQ(wrong_points(result), (Points{"attn.out"})) << result.story;
  for (const Finding& finding : result.findings)
    EXPECT_EQ(finding.verdict, Verdict::structural) << finding.rule;
}

TEST(ShownShares, AreNotMergedWhereTheResultIsOfAnotherShape) {
  const Result result = judged_after([](RecordedTensor& tensor) {
    if (!is_at(tensor, kOut)) return;
    tensor.shape = {tensor.shape[0], tensor.shape[1] / 2, tensor.shape[2]};
    tensor.data = Tensor(tensor.shape, DType::bf16);
  });
  EXPECT_EQ(wrong_points(result), (Points{"attn.out"})) << result.story;
  for (const Finding& finding : result.findings) {
    EXPECT_EQ(finding.verdict, Verdict::structural) << finding.rule;
    EXPECT_EQ(finding.rule.find("merged"), std::string::npos) << finding.rule;
  }
}

// Of one share fewer than the partial results have.
TEST(ShownShares, AreAsManyAsThereArePartialResults) {
  const Result result = judged_after([](RecordedTensor& tensor) {
    if (!is_at(tensor, kLse)) return;
    tensor.shape = {tensor.shape[0], 2, tensor.shape[2]};
    tensor.data = Tensor(tensor.shape, DType::f32);
  });
  EXPECT_EQ(wrong_points(result), (Points{"attn.lse"})) << result.story;
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->verdict, Verdict::structural);
  EXPECT_EQ(result.first->rule, "shape [21, 3, 6] was wanted, found [21, 2, 6]");
}

TEST(ShownShares, AreOfNoNumberThatIsWantedWhereTheirHeadsAreWrong) {
  const Result result = judged_after([](RecordedTensor& tensor) {
    if (!is_at(tensor, kPartial)) return;
    tensor.shape = {tensor.shape[0], 3, 5, tensor.shape[3]};
    tensor.data = Tensor(tensor.shape, DType::f32);
  });
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->rule, "shape [21, 1 or more, 6, 64] was wanted, found [21, 3, 5, 64]");
}

// A share in which a query sees no key: the second one of a prompt of less than three pages, say.
TEST(ShownShares, AreOfALogarithmOfNothing) {
  using Limits = std::numeric_limits<float>;
  for (const float shown : {0.0F, Limits::lowest(), Limits::quiet_NaN()}) {
    const Result result = judged_after([&](RecordedTensor& tensor) {
      if (!is_at(tensor, kLse)) return;
      Tensor changed(tensor.shape, DType::f32);
      for (int64_t i = 0; i < tensor.shape.count(); ++i) {
        const float lse = tensor.data.as<float>()[i];
        changed.as<float>()[i] = std::isinf(lse) ? shown : lse;
      }
      tensor.data = changed;
    });
    EXPECT_EQ(wrong_points(result), (Points{"attn.lse"})) << result.story;
    ASSERT_TRUE(result.first);
    EXPECT_EQ(result.first->verdict, Verdict::nonfinite);
    EXPECT_TRUE(result.first->rule.starts_with("introduced: the exact result is -Inf ("))
        << result.first->rule;
    const std::string begins = where_it_begins(*result.first);
    EXPECT_EQ(begins, std::isnan(shown)
                          ? "layer 1 attn.lse is the first to make NaN or Inf"
                          : "layer 1 attn.lse is the first to have a number where -Inf was wanted");
  }
}

TEST(ShownShares, TellNoMergeWhereOneOfTheTwoIsNeverShown) {
  for (const char* hidden : {"attn.lse", "attn.partial"}) {
    SCOPED_TRACE(hidden);
    const Result right = judged_after([](RecordedTensor&) {}, {hidden});
    EXPECT_TRUE(right.findings.empty()) << right.story;
    const Result wrong =
        judged_after([](RecordedTensor& tensor) { halve(tensor, kOut); }, {hidden});
    EXPECT_EQ(wrong_points(wrong), (Points{"attn.out"})) << wrong.story;
    for (const Finding& finding : wrong.findings)
      EXPECT_EQ(finding.rule.find("merged"), std::string::npos) << finding.rule;
  }
}

// An attention that reads its shares alone, as a trace's graph may have it.
TEST(ShownShares, AreReadBesideWhatTheModelsAttentionReads) {
  const Graph shown = qwen_graph_of(bard().config(), false, /*in_shares=*/true);
  Graph changed;
  for (size_t node = 0; node < shown.places().size(); ++node) {
    const std::span<const int> all = shown.inputs(static_cast<int64_t>(node));
    std::vector<int> inputs(all.begin(), all.end());
    if (shown.places()[node] == kOut) inputs.erase(inputs.begin(), inputs.begin() + 2);
    changed.add(shown.places()[node], std::move(inputs));
  }
  const auto oracle = open_reference().oracle(bard(), {.dtype = DType::bf16});
  try {
    Judge judge({.graph = changed, .dtype = DType::bf16}, *oracle, nullptr, nullptr, {});
    FAIL() << "it was judged";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "the graph of the trace is not that of the checkpoint's model: its layer 1 attn.out "
              "reads attn.partial, attn.lse, where that of the model reads attn.q_rope, attn.kv, "
              "attn.partial, attn.lse: have it written anew");
  }
}

}  // namespace
}  // namespace lockstep
