// What may be said of two traces, and what not: digests, near ties, requests of other numbers, and
// what a judgement of each adds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "src/diff/diff_digests.h"
#include "src/diff/diff_logits.h"
#include "src/diff/match_requests.h"
#include "src/judge/ledger.h"
#include "tests/diff/diff_runs.h"

namespace lockstep {
namespace {

std::vector<double> some_numbers(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> numbers(n);
  for (double& x : numbers) x = normal(random);
  return numbers;
}

Digest digest_of_numbers(const std::vector<double>& numbers) {
  return digest_of(rounded_tensor(numbers, {std::ssize(numbers)}, DType::f32));
}

DigestSums sums_of(const std::vector<double>& numbers) {
  DigestSums sums;
  sums.add(digest_of_numbers(numbers));
  return sums;
}

TEST(DigestSums, TellHowFarApartTensorsArePerhaps) {
  const std::vector<double> a = some_numbers(4096, 1);
  double likely = 0;
  for (unsigned seed = 2; seed < 34; ++seed) {
    std::vector<double> b = some_numbers(a.size(), seed);
    for (size_t i = 0; i < a.size(); ++i) b[i] = a[i] + 0.01 * b[i];
    const DigestSums::Distance found = sums_of(a).distance_to(sums_of(b));
    EXPECT_LE(found.least, relative_of(a, b));
    likely += found.likely / 32;
  }
  EXPECT_NEAR(likely, 0.01, 0.004);
  std::vector<double> b = a;
  b[7] = std::nan("");
  EXPECT_EQ(sums_of(a).distance_to(sums_of(b)).least, INFINITY);
  EXPECT_EQ(sums_of(a).distance_to(sums_of(a)).likely, 0);
}

// Three rows of one request, in one pass or in two.
struct Passes {
  DigestComparison::Rows rows;
  DigestComparison::Sums sums;
};
Passes passes_of(const std::vector<std::vector<int32_t>>& positions, int32_t token = 3) {
  Passes passes;
  for (int pass = 0; pass < static_cast<int>(positions.size()); ++pass)
    for (const int32_t p : positions[static_cast<size_t>(pass)]) {
      passes.rows[{0, p}].push_back(pass);
      passes.sums[{pass, 0}].add(Row{0, p}, token, static_cast<uint64_t>(p));
      passes.sums[{pass, 0}].add(digest_of_numbers(some_numbers(8, static_cast<unsigned>(p))));
    }
  return passes;
}

TEST(DigestComparison, IsOverThePassesThatComputedTheSameRows) {
  const auto all = [](const Row&) { return true; };
  const Passes whole = passes_of({{0, 1, 2}}), chunks = passes_of({{0, 1}, {2}});
  for (const auto& [a, b] : {std::pair(whole, chunks), std::pair(chunks, whole)}) {
    const auto found = DigestComparison(a.rows, b.rows, a.sums, b.sums).at(0, 0, all);
    ASSERT_TRUE(found);
    EXPECT_NEAR(found->distance.likely, 0, 1e-12);
  }
  const Passes fewer = passes_of({{0, 1}}), others = passes_of({{0, 1, 2}}, 4);
  for (const Passes& b : {fewer, others})
    EXPECT_FALSE(DigestComparison(whole.rows, b.rows, whole.sums, b.sums).at(0, 0, all));
}

TEST(LogitsDistance, IsTheKullbackLeiblerDivergence) {
  LogitsDistance distance;
  EXPECT_FALSE(distance.of_all());
  using Row = std::vector<double>;
  distance.add(Row{0, std::log(3.0)}, Row{0, 0});  // 1/4, 3/4 from 1/2, 1/2
  distance.add(Row{5, 5}, Row{7, 7});
  const auto all = distance.of_all();
  ASSERT_TRUE(all);
  const double kl = 0.25 * std::log(0.5) + 0.75 * std::log(1.5);
  EXPECT_NEAR(all->kl_max, kl, 1e-12);
  EXPECT_NEAR(all->kl_mean, kl / 2, 1e-12);
  EXPECT_EQ(all->rows, 2);
}

// One element of each pass is some ulp off, the op's inputs are not.
DiffResult ulps_off(double ulps, DType dtype, bool declared = true) {
  FakeRun a = run_of(dtype),
          b = run_of(dtype, spoil_at("mlp.up", 1, [&](std::vector<double>&v) {
                       const auto largest = std::ranges::max_element(v);
                       *largest = round_to(*largest, dtype) + ulps * ulp(*largest, dtype);
                     }));
  for (FakeRun* run : {&a, &b})
    if (!declared) run->manifest.contracts.clear();
  return diff_of(a, b, Selection("mlp.up", "", "", ""));
}

TEST(SameInputs, LetAnElementBeTwoRoundingsAway) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    EXPECT_EQ(ulps_off(1, dtype).verdict, DiffResult::Verdict::noise);
    const DiffResult r = ulps_off(3, dtype);
    EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << r.story;
    EXPECT_TRUE(r.first_kind->same_inputs && r.first_kind->of_element);
    EXPECT_NE(r.story.find("(two roundings: the inputs have the same bits)"), std::string::npos);
  }
  EXPECT_EQ(ulps_off(3, DType::bf16, false).verdict, DiffResult::Verdict::noise)
      << "where no contract is declared it may round otherwise";
  EXPECT_EQ(ulps_off(3, DType::f32).verdict, DiffResult::Verdict::noise)
      << "sums may be that far apart";
}

TEST(SameInputs, LetFewElementsDiffer) {
  const auto off = [](size_t step) {
    return diff_of(run_of(),
                   run_of(DType::bf16, spoil_at("mlp.act", 1,
                                                [&](auto& v) {
                                                  for (size_t i = 0; i < v.size(); i += step)
                                                    v[i] = round_to(v[i], DType::bf16) +
                                                           ulp(v[i], DType::bf16);
                                                })),
                   Selection("mlp.act", "", "", ""));
  };
  EXPECT_EQ(off(300).verdict, DiffResult::Verdict::noise) << off(300).story;
  const DiffResult r = off(4);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << r.story;
  ASSERT_TRUE(r.first_kind->share);
  EXPECT_FALSE(r.first_kind->share->of_rows);
  EXPECT_NEAR(static_cast<double>(r.first_kind->share->different),
              static_cast<double>(r.first_kind->share->of) / 4, 40);
}

// Requests 0 and 1 change their numbers, in all that a trace has of them.
FakeRun renumbered(FakeRun run) {
  const auto swap = [](int32_t& request) { request = 1 - request; };
  for (RequestInfo& request : run.manifest.requests) swap(request.id);
  for (Pass& pass : run.passes) {
    for (PassRow& r : pass.info.rows) swap(r.row.request);
    for (RequestPages& table : pass.info.pages) swap(table.request);
    for (RecordedTensor& tensor : pass.tensors)
      for (Row& row : tensor.rows) swap(row.request);
    for (TopLogits& top : pass.logits) swap(top.row.request);
  }
  return run;
}

TEST(MatchedRequests, ArePairedByTheirTokens) {
  const DiffResult r = diff_of(run_of(), renumbered(run_of()));
  EXPECT_EQ(r.verdict, DiffResult::Verdict::identical) << r.story;
  EXPECT_EQ(r.rows, diff_of(run_of(), run_of()).rows);
  ASSERT_EQ(r.renamed.size(), 2u);
  EXPECT_EQ(r.renamed[0].find("request 0 of the second trace has the tokens of request 1"), 0u);
  // Where no prompt is another one's, numbers stay.
  FakeRun other = run_of();
  for (RequestInfo& request : other.manifest.requests) request.prompt[0] += 1;
  EXPECT_TRUE(diff_of(run_of(), other).renamed.empty());
}

// Request 0 goes on with another token after its prompt of 13.
FakeRun flipped(double lead) {
  FakeRun run = run_of();
  for (RequestInfo& request : run.manifest.requests) request.forced.clear();
  run.passes[1].info.rows[0].token += 1;
  TopLogits& top = run.passes[0].logits.at(0);
  EXPECT_EQ(top.row, (Row{0, 12}));
  const double best = top.values[0];
  top.ids = {run.passes[1].info.rows[0].token, run.passes[1].info.rows[0].token - 1};
  top.values = {best, best - lead};
  for (Pass& pass : run.passes)
    std::erase_if(pass.tensors, [](const RecordedTensor& t) { return t.point->name == "logits"; });
  return run;
}

// The other trace, which chose the token that it was fed.
FakeRun unflipped() {
  FakeRun run = flipped(0);
  run.passes[1].info.rows[0].token -= 1;
  std::swap(run.passes[0].logits[0].ids[0], run.passes[0].logits[0].ids[1]);
  return run;
}

TEST(DiffTokens, ANearTieIsNoise) {
  const double ulp_of_it = ulp(unflipped().passes[0].logits[0].values[0], DType::bf16);
  const DiffResult r = diff_of(unflipped(), flipped(ulp_of_it / 2));
  EXPECT_EQ(r.verdict, DiffResult::Verdict::noise) << r.story;
  ASSERT_EQ(r.flips.size(), 1u);
  EXPECT_EQ(r.flips[0].cause, DiffResult::Flip::Cause::near_tie);
  EXPECT_EQ(r.flips[0].position, 13);
  ASSERT_TRUE(r.flips[0].margin_ulp);
  EXPECT_NEAR(*r.flips[0].margin_ulp, 0.5, 1e-9);
  EXPECT_NE(r.story.find("request 0 leaves by a near tie, the first at position 13"),
            std::string::npos)
      << r.story;
}

// The last token is fed to no pass; and what was forced before it does not choose it.
TEST(DiffTokens, ALastTokenOfANearTieIsNoise) {
  FakeRun a = run_of(), b = run_of();
  for (FakeRun* run : {&a, &b}) {
    std::erase_if(run->passes[2].tensors, [](const RecordedTensor& t) {
      return t.point->name == "logits" || t.point->name == "token";
    });
    run->passes[2].logits[0].values[1] = run->passes[2].logits[0].values[0];
    std::vector<int32_t>& tokens = run->manifest.requests[0].tokens;
    run->manifest.requests[0].forced.assign(tokens.begin(), tokens.end() - 1);
  }
  TopLogits& top = b.passes[2].logits[0];
  std::swap(top.ids[0], top.ids[1]);
  top.chosen = b.manifest.requests[0].tokens.back() = top.ids[0];
  DiffResult r = diff_of(a, b);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::noise) << r.story;
  ASSERT_EQ(r.flips.size(), 1u);
  EXPECT_EQ(r.flips[0].cause, DiffResult::Flip::Cause::near_tie);
  EXPECT_EQ(r.flips[0].position, 15);
  top.values[1] -= 1;
  std::swap(top.ids[0], top.ids[1]);
  r = diff_of(a, b);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << "not the best of its logits";
}

TEST(DiffTokens, ATokenThatIsNotTheBestOfItsLogitsIsDifferent) {
  FakeRun wrong = flipped(0.5);
  std::swap(wrong.passes[0].logits[0].ids[0], wrong.passes[0].logits[0].ids[1]);
  EXPECT_EQ(diff_of(unflipped(), wrong).verdict, DiffResult::Verdict::different);
  FakeRun forced = flipped(0);
  forced.manifest.requests.at(0).forced = {forced.passes[1].info.rows[0].token};
  const DiffResult r = diff_of(unflipped(), forced);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different);
  EXPECT_EQ(r.story.find("request 0 was fed token"), 0u) << r.story;
}

TEST(DiffTokens, NobodyCanTellWhyWithoutTheLogits) {
  FakeRun a = unflipped(), b = flipped(0);
  b.passes[0].logits.clear();
  const DiffResult r = diff_of(a, b);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::inconclusive) << r.story;
  EXPECT_NE(r.story.find("--keep full tells"), std::string::npos) << r.story;
  EXPECT_FALSE(r.flips.at(0).margin_ulp);
}

TEST(DiffTokens, OfOtherLogitsAnotherDrawMayBeRounding) {
  FakeRun a = unflipped(), b = flipped(0);
  for (FakeRun* run : {&a, &b})
    for (RequestInfo& request : run->manifest.requests)
      request.sampled = true, request.draw = DrawInfo{.temperature = 1};
  const DiffResult r = diff_of(a, b);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::inconclusive) << r.story;
  EXPECT_NE(r.story.find("--model DIR tells"), std::string::npos) << r.story;
  b.manifest.requests.at(0).draw->seed = 1;
  EXPECT_EQ(diff_of(a, b).verdict, DiffResult::Verdict::different)
      << "it was asked for something else";
}

DiffResult::Judgement judgement(const char* trace, RunVerdict verdict,
                                const char* contract = "fused") {
  return {.trace = trace,
          .verdict = verdict,
          .story = "layer 1 mlp.up introduces it",
          .first = verdict == RunVerdict::diverged ? std::optional(Place{&point("mlp.up"), 1})
                                                   : std::nullopt,
          .contracts = {{"attn.out", contract}}};
}

TEST(DiffJudgements, SayWhoIsWrong) {
  using enum RunVerdict;
  const DiffResult apart =
      diff_of(run_of(), run_of(DType::bf16, spoil_at("mlp.up", 1, [](std::vector<double>& v) {
                                 for (double& x : v) x *= 1.5;
                               })));
  ASSERT_EQ(apart.verdict, DiffResult::Verdict::different);
  DiffResult r = apart;
  put_judgements(r, {judgement("A", clean), judgement("B", clean, "eager")});
  EXPECT_EQ(r.verdict, DiffResult::Verdict::noise);
  EXPECT_EQ(r.story.find("both are right, each under its own contract; their contracts part at "
                         "attn.out (fused / eager); bits differ first at layer 1 mlp.up"),
            0u)
      << r.story;
  EXPECT_NE(r.story.find("that costs a mean KL of "), std::string::npos) << r.story;
  r = apart;
  put_judgements(r, {judgement("A", diverged), judgement("B", clean)});
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different);
  EXPECT_EQ(r.story, "A introduces an error, and B does not: layer 1 mlp.up introduces it");
  r = apart;
  put_judgements(r, {judgement("A", clean), judgement("B", inconclusive)});
  EXPECT_EQ(r.story, apart.story) << "nobody knows of B";
  DiffResult noise = diff_of(run_of(), run_of());
  put_judgements(noise, {judgement("A", diverged), judgement("B", diverged)});
  EXPECT_EQ(noise.verdict, DiffResult::Verdict::identical);
  EXPECT_TRUE(
      noise.story.ends_with("; neither is right: the first error of both is at layer 1 mlp.up"))
      << noise.story;
  r = apart;
  std::vector both = {judgement("A", diverged), judgement("B", diverged)};
  both[1].first = Place{&point("mlp.act"), 0};
  put_judgements(r, both);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different);
  EXPECT_TRUE(
      r.story.ends_with("; neither is right: the first errors are at layer 1 mlp.up and at "
                        "layer 0 mlp.act"))
      << r.story;
}

}  // namespace
}  // namespace lockstep
