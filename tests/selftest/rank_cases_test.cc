// The faults of ranks in a selftest. Ranks are processes: no thread may be there before them.
#include "src/selftest/rank_cases.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/judged.h"

namespace lockstep {
namespace {

SelftestPlan::Case named(const std::vector<SelftestPlan::Case>& cases, std::string_view fault) {
  for (const SelftestPlan::Case& c : cases)
    if (c.faults[0].name == fault) return c;
  ADD_FAILURE() << fault << " is not tried";
  return {};
}

TEST(RankCases, FindWhatIsSeededWhereItIs) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  const SelftestRun run{
      .checkpoint = checkpoint,
      .reference = open_reference(),
      .plan = {.config = checkpoint.config(), .prompts = {}, .quick = true, .over_ranks = true},
      .dtypes = {DType::bf16}};
  const auto cases = run.plan.fault_cases(DType::bf16);
  // A sum, the calls, copies, a share of rows, and more ranks than K/V heads.
  const std::map<std::string_view, std::pair<int, bool>> some = {
      {"rank-reduce-left-out", {2, false}},
      {"rank-reduce-left-out-by-one", {2, false}},
      {"rank-stale-norm", {2, false}},
      {"rank-all-reduce-for-scatter", {2, true}},
      {"rank-kv-heads-dealt", {4, false}}};
  for (const auto& [fault, shared] : some) {
    SelftestPlan::Case c = named(cases, fault);
    EXPECT_EQ(std::pair(c.ranks, c.by_rows), shared) << fault;
    const Selftest::Outcome seen = judged_over_ranks(run, c);
    EXPECT_EQ(seen.verdict, RunVerdict::diverged) << fault << ": " << seen.story;
    EXPECT_TRUE(seen.named_all() && seen.first_exact) << fault << ": " << seen.story;
    EXPECT_EQ(seen.name, c.name);
    if (fault != "rank-stale-norm") continue;
    c.faults.clear();
    const Selftest::Outcome right = judged_over_ranks(run, c);
    EXPECT_FALSE(right.is_alarm()) << right.story;
  }
}

// Heads of two K/V heads over three ranks lie in several ranks each: nobody deals them in turn.
TEST(RankCases, LeaveOutWhatTheModelCannotHave) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
  const SelftestPlan plan{
      .config = checkpoint.config(), .prompts = {}, .quick = true, .over_ranks = true};
  int64_t tried = 0;
  for (const SelftestPlan::Case& c : plan.fault_cases(DType::f32)) {
    tried += c.ranks > 1;
    EXPECT_NE(c.faults[0].name, "rank-kv-heads-dealt");
    EXPECT_NE(c.faults[0].name, "rank-bias-added-by-each") << "the model has no bias of o";
  }
  EXPECT_GE(tried, 12);
}

}  // namespace
}  // namespace lockstep
