#include "src/judge/diff.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/judge/ledger.h"
#include "src/judge/report.h"
#include "tests/judge/memory_trace.h"

namespace lockstep {
namespace {

FakeRun run_of(DType dtype = DType::bf16, Spoil spoil = {}) {
  FakeModel model(dtype, std::move(spoil));
  return fake_run(model, dtype);
}

Spoil spoil_at(const std::string& name, int layer, std::function<void(std::vector<double>&)> how) {
  return [=](const Place& place, const PassInfo&, std::vector<double>& v) {
    if (place.point->name == name && place.layer == layer) how(v);
  };
}

DiffResult diff_of(FakeRun a, FakeRun b, DiffOptions options = {}) {
  MemoryTrace x(std::move(a)), y(std::move(b));
  return diff(x, y, options);
}

void forget_data(FakeRun& run) {
  for (Pass& pass : run.passes)
    for (KeptTensor& t : pass.tensors) t.data = {};
}

TEST(Diff, ATraceIsIdenticalToItself) {
  const DiffResult r = diff_of(run_of(), run_of());
  EXPECT_EQ(r.verdict, "identical") << r.story;
  EXPECT_EQ(exit_status(r), 0);
  EXPECT_EQ(r.rows, r.equal);
  EXPECT_GT(r.rows, 500);
  EXPECT_FALSE(r.first_bits);
}

TEST(Diff, HashesAloneSayIdentical) {
  FakeRun a = run_of(), b = run_of();
  forget_data(a);
  forget_data(b);
  EXPECT_EQ(diff_of(a, b).verdict, "identical");
}

TEST(Diff, RoundingTheOtherWayNowAndThenIsNoise) {
  int n = 0;
  const DiffResult r = diff_of(
      run_of(), run_of(DType::bf16, [&](const Place& p, const PassInfo&, std::vector<double>& v) {
        if (p.point->node_class == NodeClass::exact) return;
        for (double& x : v)
          if (n++ % 5 == 0) x += 0.6 * ulp(x, DType::bf16);
      }));
  ASSERT_TRUE(r.first_bits);
  EXPECT_EQ(text_of(r.first_bits->place), "layer 0 attn.norm");
  EXPECT_FALSE(r.first_kind) << r.story;
}

TEST(Diff, ABugIsNamedAndItsTailIsNot) {
  const auto bug = [](std::vector<double>& v) {
    for (size_t i = 0; i < v.size(); i += 3) v[i] = -v[i];
  };
  const DiffResult r = diff_of(run_of(), run_of(DType::bf16, spoil_at("attn.k_norm", 1, bug)));
  EXPECT_EQ(r.verdict, "different");
  EXPECT_EQ(exit_status(r), 1);
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->place), "layer 1 attn.k_norm");
  EXPECT_GT(r.first_kind->relative, r.first_kind->limit);
  EXPECT_TRUE(r.first_kind->measured);
  EXPECT_NE(r.story.find("layer 1 attn.k_norm"), std::string::npos);
}

TEST(Diff, DigestsBoundADifferenceFromBelow) {
  FakeRun a = run_of();
  FakeRun b = run_of(DType::bf16, spoil_at("mlp.act", 0, [](std::vector<double>& v) {
                       for (double& x : v) x *= 1.5;
                     }));
  forget_data(a);
  forget_data(b);
  const DiffResult r = diff_of(a, b);
  EXPECT_EQ(r.verdict, "different");
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->place), "layer 0 mlp.act");
  EXPECT_FALSE(r.first_kind->measured);
  EXPECT_NEAR(r.first_kind->relative, 0.5, 0.02);
  EXPECT_GT(r.unmeasured, 0);
}

// Of a cache hashes alone are kept: how far apart it is, what was written says.
TEST(Diff, ACacheWithoutNumbersIsAsFarApartAsWhatWasWritten) {
  FakeRun a = run_of();
  FakeRun b = run_of(DType::bf16, [](const Place& p, const PassInfo&, std::vector<double>& v) {
    // More than one op's noise, in small steps.
    const double step = p.layer != 0                   ? 1
                        : p.point->name == "attn.norm" ? 1.006
                        : p.point->name == "attn.v"    ? 1.04
                                                       : 1;
    for (double& x : v) x *= step;
  });
  for (FakeRun* run : {&a, &b})
    for (Pass& pass : run->passes)
      for (KeptTensor& t : pass.tensors)
        if (t.point->op == OpKind::cache) t.data = {};
  const DiffResult r = diff_of(a, b);
  EXPECT_FALSE(r.first_kind) << r.story;
  EXPECT_GT(r.unmeasured, 0);
}

TEST(Diff, NanOnOneSideIsDifferentInKind) {
  const DiffResult r = diff_of(
      run_of(), run_of(DType::bf16, spoil_at("mlp.down", 1,
                                             [](std::vector<double>& v) { v[0] = std::nan(""); })));
  ASSERT_TRUE(r.first_kind);
  EXPECT_EQ(text_of(r.first_kind->place), "layer 1 mlp.down");
}

TEST(Diff, OtherTokensEndTheComparisonOfTheirRequest) {
  FakeRun b = run_of();
  b.passes[1].info.rows[0].token += 1;
  const DiffResult r = diff_of(run_of(), b);
  EXPECT_EQ(r.verdict, "different");
  ASSERT_EQ(r.structure.size(), 1u);
  EXPECT_NE(r.structure[0].find("request 0"), std::string::npos);
  EXPECT_NE(r.structure[0].find("position 13"), std::string::npos);
  EXPECT_EQ(r.rows, r.equal);
  EXPECT_EQ(r.only_a + r.only_b, 0);
}

TEST(Diff, APlaceOrARowThatOnlyOneHasIsCounted) {
  FakeRun less = run_of();
  std::erase_if(less.passes[0].tensors,
                [](const KeptTensor& t) { return t.point->name == "mlp.up" && t.layer == 0; });
  DiffResult r = diff_of(run_of(), less);
  EXPECT_EQ(r.verdict, "different");
  EXPECT_EQ(r.only_a, 22);
  r = diff_of(less, run_of());
  EXPECT_EQ(r.verdict, "different");
  EXPECT_EQ(r.only_b, 22);
  less = run_of();
  less.passes.pop_back();
  EXPECT_GT(diff_of(run_of(), less).only_a, 0);
  EXPECT_EQ(diff_of(less, run_of()).only_b, 2);
}

TEST(Diff, AnotherShapeIsDifferentInKind) {
  FakeRun b = run_of();
  auto& up = const_cast<KeptTensor&>(*b.passes[0].find(point("mlp.up"), 0));
  up.data = rounded_tensor(std::vector<double>(22 * 40, 1.0), {22, 40}, DType::bf16);
  up.shape = {22, 40};
  up.row_hashes = row_hashes_of(up.data);
  const DiffResult r = diff_of(run_of(), b);
  ASSERT_TRUE(r.first_kind);
  EXPECT_EQ(text_of(r.first_kind->place), "layer 0 mlp.up");
}

TEST(Diff, NothingInCommonIsInconclusive) {
  FakeRun a = run_of();
  const DiffResult none = diff_of(a, a, {.selection = Selection("", "", "", "7")});
  EXPECT_EQ(none.rows, 0);
  EXPECT_EQ(exit_status(none), 2);
  MemoryTrace x(a), y(a, false);
  EXPECT_EQ(exit_status(diff(x, y, {})), 2);  // an incomplete one
}

// One request whose prompt goes through at once, or in chunks.
FakeRun chunked(const std::vector<int>& chunks) {
  FakeModel model(DType::bf16);
  FakeRun run;
  int32_t position = 0;
  for (int chunk : chunks) {
    PassInfo info{.pass = static_cast<int32_t>(run.passes.size())};
    for (int i = 0; i < chunk; ++i, ++position)
      info.rows.push_back({{0, position}, (position * 7) % 40, position, Phase::prefill});
    run.passes.push_back(pass_of(model, info));
  }
  return run;
}

TEST(Diff, ChunkingDoesNotMatter) {
  const DiffResult r = diff_of(chunked({11}), chunked({4, 1, 6}));
  EXPECT_EQ(r.verdict, "identical") << r.story;
  EXPECT_EQ(r.rows, diff_of(chunked({11}), chunked({11})).rows);
  EXPECT_EQ(diff_of(chunked({4, 1, 6}), chunked({11})).verdict, "identical");
}

TEST(DiffReport, OfEveryFormat) {
  const DiffResult r = diff_of(
      run_of(),
      run_of(DType::bf16, spoil_at("mlp.up", 0, [](std::vector<double>& v) { v[0] += 100; })));
  const auto json = nlohmann::json::parse(report_json(r));
  EXPECT_EQ(json["format"], "lockstep-diff");
  EXPECT_EQ(json["first_kind"]["point"], "mlp.up");
  EXPECT_EQ(json["rows"]["compared"], r.rows);
  const std::string table = report_table(r), csv = report_csv(r);
  EXPECT_NE(table.find("layer 0 mlp.up"), std::string::npos);
  EXPECT_EQ(table.rfind("different: "), table.rfind('\n', table.size() - 2) + 1);
  EXPECT_EQ(std::ranges::count(csv, '\n'), std::ssize(r.places) + 1);
  const DiffResult same = diff_of(run_of(), run_of());
  EXPECT_EQ(report_table(same).find("identical"), 0u);
}

}  // namespace
}  // namespace lockstep
