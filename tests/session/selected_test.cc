// A run that judges some places alone says of these what a run that judges all says, and keeps no
// more than it takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "src/session/judged_trace.h"
#include "tests/judged.h"
#include "tests/model_label.h"
#include "tests/whole.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

class Selected : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { std::filesystem::remove_all(trace_); }

  // Requests that are prefilled in several chunks, and decode, from graphs where there can be some.
  Result run(const Selection& selection, const std::vector<FaultRequest>& faults,
             const std::string& trace = "") const {
    const int64_t vocab = checkpoint_.config().vocab;
    return judged({.checkpoint = checkpoint_,
                   .reference = open_reference(),
                   .engine = {.graph = true,
                              .dtype = DType::bf16,
                              .page_size = 4,
                              .page_order_seed = 3,
                              .chunk = 8},
                   .requests = {{.prompt = some_tokens(19, vocab), .max_new = 3},
                                {.prompt = some_tokens(5, vocab, 2), .max_new = 4}},
                   .faults = faults,
                   .judge = {.selection = selection},
                   .causes = whole(),
                   .trace = trace,
                   .level = TraceLevel::full});
  }
  // Of the selected places `some` says what `all` says.
  static void expect_same(const Result& some, const Result& all, const Selection& selection) {
    EXPECT_GT(some.expected, 0);
    EXPECT_EQ(some.judged, some.expected) << some.story;
    size_t compared = 0;
    for (const PlaceSummary& want : all.places) {
      if (!selection.has(*want.place.point, want.place.layer)) continue;
      const auto got = std::ranges::find(some.places, want.place, &PlaceSummary::place);
      ASSERT_NE(got, some.places.end()) << want.place.point->name;
      const std::string where = std::string(want.place.point->name) + " of " + selection.text();
      EXPECT_EQ(got->judged, want.judged) << where;
      EXPECT_EQ(got->worst_t1, want.worst_t1) << where;
      EXPECT_EQ(got->worst_t2, want.worst_t2) << where;
      EXPECT_EQ(got->introduced_rms, want.introduced_rms) << where;
      EXPECT_EQ(got->total_rms, want.total_rms) << where;
      EXPECT_EQ(got->verdict == Verdict::introduced, want.verdict == Verdict::introduced) << where;
      ++compared;
    }
    EXPECT_GT(compared, 0u);
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
  std::string trace_ = temp_path("selected.h5");
  const std::vector<FaultRequest> bug_ = {parse_fault("rope-interleaved@layer=1")};
};

TEST_P(Selected, PlacesAreJudgedAsInAWholeRun) {
  size_t turn = 0;
  for (const std::vector<FaultRequest>& faults : {std::vector<FaultRequest>(), bug_}) {
    const Result all = run({}, faults);
    EXPECT_EQ(all.verdict, faults.empty() ? RunVerdict::clean : RunVerdict::diverged) << all.story;
    for (const Selection& selection :
         {Selection("", "1", "", ""), Selection("", "0,2", "", ""),
          Selection("attn.out", "", "", ""), Selection("attn.kv", "1", "", ""),
          Selection("mlp.*", "1-2", "", "")}) {
      // Each selection of a right run or of a wrong one, by turns: of the wrong one those that have
      // the layer that is wrong are among them.
      if (turn++ % 2 == 0 && !whole()) continue;
      expect_same(run(selection, faults), all, selection);
    }
  }
}

TEST_P(Selected, PlacesAndWhatTheirOpsReadAreKept) {
  const Selection selection("attn.*", "1", "", "");
  const Result of_run = run(selection, bug_, trace_);
  ASSERT_TRUE(of_run.first) << of_run.story;
  EXPECT_EQ(of_run.first->node.place.point->name, "attn.q_rope");
  const std::vector<Place> needed = graph_of(checkpoint_.config()).places_to_judge(selection);
  const auto trace = open_trace(trace_);
  EXPECT_GT(trace->passes(), 3);
  for (int i = 0; i < trace->passes(); ++i) {
    const Pass pass = trace->read(i, /*data=*/false);
    for (const RecordedTensor& tensor : pass.tensors)
      EXPECT_EQ(std::ranges::count(needed, Place{tensor.point, tensor.layer}), 1)
          << tensor.point->name << " of layer " << tensor.layer;
    for (const Place& place : needed) {
      if (pass.info.logit_rows.empty() && !place.point->per_layer) continue;
      EXPECT_NE(pass.find(*place.point, place.layer), nullptr)
          << place.point->name << " of layer " << place.layer;
    }
  }
  const Result of_trace = judge_trace(trace_, checkpoint_, {.selection = selection});
  ASSERT_TRUE(of_trace.first) << of_trace.story;
  EXPECT_EQ(of_trace.first->node.place, of_run.first->node.place);
  EXPECT_EQ(of_trace.judged, of_run.judged);
}

// Of a model whose tokens show the bug.
class NotSelected : public Selected {
 protected:
  static void expect_nobody_blamed(const Result& result) {
    EXPECT_TRUE(result.findings.empty()) << result.story;
    EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
    EXPECT_NE(
        result.story.find("more than rounding explains, so an op that was not judged is wrong"),
        std::string::npos)
        << result.story;
  }
};

TEST_P(NotSelected, AnOpThatIsWrongIsNotTakenForAnother) {
  const Result all = run({}, bug_);
  ASSERT_TRUE(all.first && all.logits);
  ASSERT_LT(all.logits->argmax_equal + all.logits->explained_flips, all.logits->compared);
  for (const Selection& selection : {Selection("", "0,2", "", ""), Selection("mlp.*", "", "", ""),
                                     Selection("logits", "", "", "")}) {
    const Result some = run(selection, bug_);
    EXPECT_EQ(some.judged, some.expected);
    expect_nobody_blamed(some);
  }
}

TEST_P(NotSelected, AnOpThatATraceLacksIsNotTakenForAnother) {
  run({}, bug_, trace_);
  const auto trace = open_trace(trace_);
  const ReferenceOptions options{.dtype = DType::bf16};
  ReferenceLibrary& reference = open_reference();
  const auto oracle = reference.oracle(checkpoint_, options);
  const auto exact = reference.model(checkpoint_, options, DType::f64);
  const auto rounded = reference.model(checkpoint_, options, DType::bf16);
  Judge judge(trace->manifest(), *oracle, exact.get(), rounded.get(), {});
  for (int i = 0; i < trace->passes(); ++i) {
    Pass pass = trace->read(i, /*data=*/true);
    for (RecordedTensor& tensor : pass.tensors)
      if (tensor.layer == 1 &&
          (*tensor.point == point("attn.q_rope") || *tensor.point == point("attn.k_rope")))
        tensor.data = {};
    judge.judge(pass);
  }
  const Result result = judge.finish(trace->manifest().requests, true);
  EXPECT_LT(result.judged, result.expected);
  expect_nobody_blamed(result);
}

INSTANTIATE_TEST_SUITE_P(Models, NotSelected,
                         testing::Values("tiny/qwen3-moe", "tiny/qwen2-sliding"), model_label);
INSTANTIATE_TEST_SUITE_P(Models, Selected,
                         testing::Values("bard-qwen3", "bard-qwen2.5", "tiny/qwen3-moe",
                                         "tiny/qwen2-sliding"),
                         model_label);

}  // namespace
}  // namespace lockstep
