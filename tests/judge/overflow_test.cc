// A number that the dtype cannot hold is an overflow of the model, and a bug only where the exact
// result is none. One that it holds as 0 is right, and tests nothing.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/judge/judge.h"
#include "src/judge/ledger.h"
#include "tests/judge/fake_model.h"

namespace lockstep {
namespace {

bool is_large(const Place& place) { return place.point->name == "mlp.act" && place.layer == 0; }

// A model whose layer 0 makes numbers that fp16 does not hold.
class LargeOracle : public FakeOracle {
 public:
  Exact evaluate(const OracleCall& call) override {
    Exact exact = FakeOracle::evaluate(call);
    if (!is_large(call.place)) return exact;
    std::vector<double> want(exact.want.begin(), exact.want.end());
    for (double& x : want) x *= 1e8;
    exact.want = std::move(want);
    return exact;
  }
};

FakeRun large_run(const Spoil& more = {}) {
  FakeModel model(DType::f16, [=](const Place& p, const PassInfo& info, std::vector<double>& v) {
    if (is_large(p))
      for (double& x : v) x *= 1e8;
    if (more) more(p, info, v);
  });
  return fake_run(model, DType::f16);
}

Result judged(const FakeRun& run, Oracle& oracle, std::vector<NodeId>* flags = nullptr,
              JudgeOptions options = {}) {
  Judge judge(run.manifest, oracle, nullptr, nullptr, std::move(options));
  for (const Pass& pass : run.passes)
    for (const NodeId& flag : judge.judge(pass))
      if (flags) flags->push_back(flag);
  return judge.finish(run.requests, true);
}

int64_t count(const Result& result, Verdict verdict) { return result.counts[verdict]; }

TEST(Overflow, OfTheExactResultIsNoFindingAndWhatItMakesNaNIsNotJudged) {
  LargeOracle oracle;
  std::vector<NodeId> flags;
  const Result result = judged(large_run(), oracle, &flags);
  EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
  EXPECT_EQ(exit_status(result), 2);
  EXPECT_TRUE(result.findings.empty());
  EXPECT_TRUE(flags.empty());
  EXPECT_EQ(count(result, Verdict::nonfinite), 6);
  EXPECT_GT(count(result, Verdict::inconclusive), 100);  // NaN, from there on
  EXPECT_EQ(result.judged + count(result, Verdict::inconclusive), result.expected);
  EXPECT_GT(result.excluded, 0);
  EXPECT_NE(result.story.find("because layer 0 mlp.act overflows as its exact result does"),
            std::string::npos)
      << result.story;
  EXPECT_EQ(std::ranges::count_if(result.notes,
                                  [](const std::string& note) {
                                    return note.starts_with("layer 0 mlp.act overflows in 6 nodes");
                                  }),
            1);
}

// Engines may clamp. Those who compute in the place of Lockstep's own ops are told to store Inf.
TEST(Overflow, IsHeldAtTheLargestNumberByOtherEnginesAlone) {
  LargeOracle oracle;
  FakeModel model(DType::f16, [](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (is_large(p))
      for (double& x : v) x = std::clamp(x * 1e8, -65504.0, 65504.0);
  });
  FakeRun run = fake_run(model, DType::f16);
  const auto says_clamps = [](const Result& result) {
    return std::ranges::any_of(result.notes, [](const std::string& note) {
      return note.find("an engine that clamps") != std::string::npos;
    });
  };
  const Result other = judged(run, oracle);
  EXPECT_TRUE(other.findings.empty()) << other.story;
  EXPECT_TRUE(says_clamps(other));
  run.manifest.provenance["engine"] = "lockstep";
  const Result own = judged(run, oracle);
  ASSERT_TRUE(own.first) << own.story;
  EXPECT_TRUE(is_large(own.first->node.place)) << own.story;
  EXPECT_FALSE(says_clamps(own));
}

// Bugs after it, in ops that read nothing but NaN: nobody can see them, and nobody says clean.
TEST(Overflow, IsNeverCleanWhateverComesAfterIt) {
  LargeOracle oracle;
  const Result result =
      judged(large_run([](const Place& p, const PassInfo&, std::vector<double>& v) {
               if (p.layer == 1 && p.point->name == "attn.q")
                 for (double& x : v) x = -3 * x;
             }),
             oracle);
  EXPECT_NE(exit_status(result), 0) << result.story;
}

// A model whose layer 0 does so at one row.
class LargeRow : public FakeOracle {
 public:
  Exact evaluate(const OracleCall& call) override {
    Exact exact = FakeOracle::evaluate(call);
    if (!is_large(call.place)) return exact;
    std::vector<double> want(exact.want.begin(), exact.want.end());
    for (size_t t = 0; t < call.rows.size(); ++t)
      if (call.rows[t] == Row{1, 2})
        for (size_t i = 0; i < kInner; ++i) want[t * kInner + i] *= 1e8;
    exact.want = std::move(want);
    return exact;
  }
};

void enlarge_row(const Place& p, const PassInfo& info, std::vector<double>& v) {
  for (size_t t = 0; t < info.rows.size(); ++t)
    if (is_large(p) && info.rows[t].row == Row{1, 2})
      for (size_t i = 0; i < kInner; ++i) v[t * kInner + i] *= 1e8;
}

// One of a node's rows: the others are judged, and a bug in them is found.
TEST(Overflow, OfOneRowLeavesTheOthersJudged) {
  const auto run = [](double bug) {
    FakeModel model(DType::f16,
                    [bug](const Place& p, const PassInfo& info, std::vector<double>& v) {
                      enlarge_row(p, info, v);
                      if (p.layer == 1 && p.point->name == "mlp.gate")
                        v[3] += bug;  // of another row
                    });
    return fake_run(model, DType::f16);
  };
  LargeRow oracle;
  const Result clean = judged(run(0), oracle), wrong = judged(run(5), oracle);
  EXPECT_TRUE(clean.findings.empty()) << clean.story;
  EXPECT_GT(clean.excluded, 0);
  ASSERT_TRUE(wrong.first) << wrong.story;
  EXPECT_EQ(text_of(wrong.first->node.place), "layer 1 mlp.gate");
}

TEST(Overflow, WhereTheExactResultIsANumberIsABug) {
  FakeOracle oracle;
  const Result result = judged(large_run(), oracle);
  EXPECT_EQ(result.verdict, RunVerdict::diverged);
  ASSERT_TRUE(result.first);
  EXPECT_EQ(text_of(result.first->node.place), "layer 0 mlp.act");
  EXPECT_EQ(result.first->verdict, Verdict::nonfinite);
  EXPECT_NE(result.first->rule.find("introduced"), std::string::npos);
}

TEST(Overflow, HidesNoBugBesideIt) {
  // One number of the node that overflows, and one of another node after it.
  LargeOracle oracle;
  const Result same = judged(large_run([](const Place& p, const PassInfo&, std::vector<double>& v) {
                               if (is_large(p)) v[3] = 5;
                             }),
                             oracle);
  EXPECT_EQ(exit_status(same), 1);
  EXPECT_EQ(text_of(same.first->node.place), "layer 0 mlp.act");
  const auto in_next_layer = [](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (p.point->name == "attn.o" && p.layer == 0) v[3] += 5;
  };
  const Result other = judged(large_run(in_next_layer), oracle);
  EXPECT_EQ(exit_status(other), 1);
  EXPECT_EQ(text_of(other.first->node.place), "layer 0 attn.o");
}

TEST(Overflow, NanThatDoesNotStemFromItIsStillABug) {
  LargeOracle oracle;
  const Result result =
      judged(large_run([](const Place& p, const PassInfo&, std::vector<double>& v) {
               if (p.point->name == "attn.v" && p.layer == 0) v[0] = std::nan("");
             }),
             oracle);
  EXPECT_EQ(exit_status(result), 1);
  EXPECT_EQ(text_of(result.first->node.place), "layer 0 attn.v");
}

// A pass more, of a request that begins with what request 1 left in the cache.
FakeRun with_heir(FakeModel& model) {
  FakeRun run = fake_run(model, DType::f16);
  std::vector<int32_t> prompt = run.requests[1].prompt;
  PassInfo info{.pass = 3, .logit_rows = {1}};
  info.inherited.push_back({7, {prompt.begin(), prompt.begin() + 8}});
  prompt.resize(8);
  for (int32_t p = 8; p < 10; ++p) {
    prompt.push_back(p);
    info.rows.push_back({{7, p}, p, p, Phase::prefill});
  }
  for (const int layer : {0, 1}) {
    model.lane(layer, 7) = model.lane(layer, 1);
    model.lane(layer, 7).resize(8);
  }
  run.passes.push_back(pass_of(model, info));
  const RecordedTensor* token = run.passes.back().find(point("token"), -1);
  const auto chosen = static_cast<int32_t>(value_at(token->data, 0));
  run.requests.push_back({.id = 7, .prompt = prompt, .tokens = {chosen}, .argmax = {chosen}});
  run.manifest.requests = run.requests;
  return run;
}

TEST(Overflow, IsLedBackFromARequestThatReadsWhatAnotherLeftInTheCache) {
  LargeRow due;
  FakeModel large(DType::f16, enlarge_row);
  const Result open = judged(with_heir(large), due);
  EXPECT_TRUE(open.findings.empty()) << open.story;
  EXPECT_NE(open.story.find("because layer 0 mlp.act overflows"), std::string::npos) << open.story;

  FakeOracle oracle;
  FakeModel spoilt(DType::f16, [](const Place& p, const PassInfo& info, std::vector<double>& v) {
    for (size_t t = 0; t < info.rows.size(); ++t)
      if (p.layer == 1 && p.point->name == "attn.v" && info.rows[t].row == Row{1, 2})
        v[t * v.size() / info.rows.size()] = std::nan("");
  });
  const Result wrong = judged(with_heir(spoilt), oracle);
  EXPECT_EQ(exit_status(wrong), 1);
  EXPECT_EQ(wrong.findings.size(), 1u) << wrong.story;
  EXPECT_EQ(text_of(wrong.first->node.place), "layer 1 attn.v");
  EXPECT_EQ(wrong.first->node.request, 1);
}

constexpr const char* kUnknownMaker =
    "what they read holds NaN or Inf, and nobody judged who made it";

// Whoever overflows as it should is not looked at. What reads it is as right as ever.
TEST(Overflow, OfAnOpThatNobodyJudgedIsNoFindingInThoseThatReadIt) {
  LargeOracle oracle;
  for (const char* points :
       {"mlp.down", "mlp.residual,logits", "attn.out,token", "attn.kv,attn.out"}) {
    const Result result = judged(large_run(), oracle, nullptr, {.selection = {points, "", "", ""}});
    EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
    EXPECT_TRUE(result.findings.empty()) << result.story;
    EXPECT_NE(result.story.find(kUnknownMaker), std::string::npos) << result.story;
  }
  // The rows of the first pass alone hold it, and are read from the cache in the later ones.
  FakeRun run = large_run([](const Place& p, const PassInfo& info, std::vector<double>& v) {
    if (is_large(p) && info.pass > 0)
      for (double& x : v) x = 0;
  });
  const Result later = judged(run, oracle, nullptr, {.selection = {"attn.out", "1", "13-14", "0"}});
  EXPECT_TRUE(later.findings.empty()) << later.story;
  EXPECT_NE(later.story.find(kUnknownMaker), std::string::npos) << later.story;
}

TEST(Overflow, OfAnOpThatTheTraceLacksIsNoFindingInThoseThatReadIt) {
  LargeOracle oracle;
  const auto has = [](const Place& place) { return place.point->name != "mlp.act"; };
  FakeRun run = large_run();
  for (Pass& pass : run.passes)
    std::erase_if(pass.tensors, [&](const RecordedTensor& t) { return !has({t.point, t.layer}); });
  const Result result = judged(run, oracle, nullptr, {.recorded = has});
  EXPECT_TRUE(result.findings.empty()) << result.story;
  EXPECT_EQ(result.verdict, RunVerdict::inconclusive) << result.story;
}

// As by a weight that is NaN: all that the op reads was judged, so no other op made it.
TEST(Overflow, NanThatNoInputHasIsAFindingWhoeverWasJudged) {
  const auto is_bad = [](const Place& p) { return p.point->name == "mlp.down" && p.layer == 0; };
  class NanWeight : public FakeOracle {
   public:
    Exact evaluate(const OracleCall& call) override {
      Exact exact = FakeOracle::evaluate(call);
      if (call.place.point->name != "mlp.down" || call.place.layer != 0) return exact;
      std::vector<double> want(exact.want.begin(), exact.want.end());
      want[3] = std::nan("");
      exact.want = std::move(want);
      return exact;
    }
  };
  FakeModel model(DType::f16, [&](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (is_bad(p)) v[3] = std::nan("");
  });
  NanWeight oracle;
  const Result result = judged(fake_run(model, DType::f16), oracle);
  EXPECT_EQ(exit_status(result), 1) << result.story;
  ASSERT_TRUE(result.first);
  EXPECT_EQ(text_of(result.first->node.place), "layer 0 mlp.down");
}

bool is_activation(const Place& place, int layers) {
  return place.point->name == "mlp.act" && place.layer < layers;
}

// A model whose first layers make numbers that are so many times too small.
class SmallOracle : public FakeOracle {
 public:
  SmallOracle(int layers, double factor) : layers_(layers), factor_(factor) {}
  Exact evaluate(const OracleCall& call) override {
    Exact exact = FakeOracle::evaluate(call);
    if (!is_activation(call.place, layers_)) return exact;
    std::vector<double> want(exact.want.begin(), exact.want.end());
    for (double& x : want) x *= factor_;
    exact.want = std::move(want);
    return exact;
  }

 private:
  int layers_;
  double factor_;
};

// What is said of zeros where a model makes such numbers in `small` layers, as it does in `due`.
std::vector<std::string> said_of_zeros(int small, double factor, int due, RunVerdict verdict) {
  FakeModel model(DType::f16, [=](const Place& p, const PassInfo&, std::vector<double>& v) {
    if (is_activation(p, small))
      for (double& x : v) x *= factor;
  });
  SmallOracle oracle(due, factor);
  Result result = judged(fake_run(model, DType::f16), oracle);
  EXPECT_EQ(result.verdict, verdict) << result.story;
  std::erase_if(result.notes, [](const std::string& note) {
    return note.find(" 0 in every element") == std::string::npos;
  });
  return result.notes;
}

// Products with zeros are right whatever the weights of mlp.down are.
TEST(Underflow, OfAWholeTensorIsRightAndSaidToLeaveWhatMultipliesItUntested) {
  using Notes = std::vector<std::string>;
  constexpr RunVerdict kClean = RunVerdict::clean;
  EXPECT_EQ(said_of_zeros(1, 1e-12, 1, kClean),
            Notes{"layer 0 mlp.act is 0 in every element: nothing that multiplies it was tested"});
  EXPECT_EQ(said_of_zeros(2, 1e-12, 2, kClean),
            Notes{"layer 0 mlp.act is 0 in every element, as in 1 more layer: nothing that "
                  "multiplies it was tested"});
  EXPECT_EQ(said_of_zeros(1, 1e-7, 1, kClean), Notes{}) << "some elements are above 0";
  EXPECT_EQ(said_of_zeros(0, 1, 0, kClean), Notes{});
  EXPECT_EQ(said_of_zeros(1, 1e-12, 0, RunVerdict::diverged), Notes{}) << "a finding says it";
}

}  // namespace
}  // namespace lockstep
