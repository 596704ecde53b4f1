#pragma once

#include <gtest/gtest.h>

#include "src/judge/judge.h"
#include "src/judge/ledger.h"
#include "tests/helpers.h"
#include "tests/judge/fake_model.h"

namespace lockstep {

class JudgeTest : public testing::Test {
 protected:
  // All passes of the run judged; with the models beside it when `models`.
  Result judged(const FakeRun& run, bool models = true, JudgeOptions options = {},
                bool complete = true) {
    FakeModel exact(DType::f64), rounded(run.manifest.dtype);
    Judge judge(run.manifest, oracle_, models ? &exact : nullptr, models ? &rounded : nullptr,
                std::move(options));
    flags_.clear();
    for (const Pass& pass : run.passes)
      for (const NodeId& flag : judge.judge(pass)) flags_.push_back(flag);
    return judge.finish(run.requests, complete);
  }

  // A clean run in bf16, as the fake model makes it.
  static FakeRun clean(DType dtype = DType::bf16) {
    FakeModel model(dtype);
    return fake_run(model, dtype);
  }

  // A run in which that place of that pass is spoilt.
  static FakeRun spoilt(std::string_view name, int layer, int pass,
                        std::function<void(std::vector<double>&)> how, DType dtype = DType::bf16) {
    FakeModel model(dtype, [=](const Place& place, const PassInfo& info, std::vector<double>& v) {
      if (place.point->name == name && place.layer == layer && info.pass == pass) how(v);
    });
    return fake_run(model, dtype);
  }

  static RecordedTensor& tensor(Pass& pass, std::string_view name, int layer) {
    return const_cast<RecordedTensor&>(*pass.find(*find_point(name), layer));
  }

  static int64_t count(const Result& result, Verdict verdict) { return result.counts[verdict]; }

  static void expect_first(const Result& result, const std::string& place, int pass,
                           int32_t request, Verdict verdict) {
    EXPECT_EQ(result.verdict, RunVerdict::diverged);
    EXPECT_EQ(exit_status(result), 1);
    ASSERT_TRUE(result.first);
    EXPECT_EQ(text_of(result.first->node.place), place) << result.story;
    EXPECT_EQ(result.first->node.pass, pass);
    EXPECT_EQ(result.first->node.request, request);
    EXPECT_EQ(result.first->verdict, verdict) << result.story;
    // Of a region the story names the end last.
    const std::string end = result.first->region.empty()
                                ? place
                                : ".. " + std::string(result.first->node.place.point->name);
    EXPECT_NE(result.story.find(end), std::string::npos) << result.story;
  }

  FakeOracle oracle_;
  std::vector<NodeId> flags_;
};

}  // namespace lockstep
