// An oracle that has no memory for many rows is asked about few at a time, and nothing that is said
// changes by it.
#include <algorithm>
#include <atomic>

#include "src/judge/halving_oracle.h"
#include "src/judge/no_memory.h"
#include "src/report/output.h"
#include "src/report/report.h"
#include "tests/judge/judge_fixture.h"

namespace lockstep {
namespace {

// Has memory for so many rows, and is asked by one thread at a time.
class Narrow final : public FakeOracle {
 public:
  explicit Narrow(size_t rows) : rows_(rows) {}
  Exact evaluate(const OracleCall& call) override {
    EXPECT_EQ(asked_++, 0);
    const bool fits = call.rows.size() <= rows_;
    if (fits) {
      Exact exact = FakeOracle::evaluate(call);
      --asked_;
      return exact;
    }
    --asked_, ++refused;
    throw NoMemory("no memory for that many rows: ask about fewer");
  }
  int refused = 0;

 private:
  size_t rows_;
  std::atomic<int> asked_ = 0;
};

class HalvingTest : public JudgeTest {
 protected:
  // All that is said of the run.
  static std::string said(const FakeRun& run, Oracle& oracle) {
    FakeModel exact(DType::f64), rounded(run.manifest.dtype);
    JudgeOptions options;
    options.recorded = [&](const Place& place) {
      return run.passes[0].find(*place.point, place.layer) != nullptr;
    };
    Judge judge(run.manifest, oracle, &exact, &rounded, options);
    for (const Pass& pass : run.passes) judge.judge(pass);
    return text_of(document_of(judge.finish(run.requests, true)), "json");
  }
  void expect_same(const FakeRun& run, const std::string& where) {
    const std::string whole = said(run, oracle_);
    for (const size_t rows : {1, 3, 8}) {
      Narrow narrow(rows);
      EXPECT_EQ(said(run, narrow), whole) << where << " by " << rows;
      EXPECT_GT(narrow.refused, 0);
      EXPECT_GT(2 * narrow.largest_call, rows);
      EXPECT_LE(narrow.largest_call, rows);
    }
  }
  // A pass of one request that is shown after its embedding alone, in three blocks.
  static Pass long_pass(Oracle& oracle, int32_t wrong);
};

TEST_F(HalvingTest, LeavesAllThatIsSaidAsItIs) {
  for (const DType dtype : {DType::bf16, DType::f32}) expect_same(clean(dtype), "a clean run");
  const auto shift = [](std::vector<double>& v) { v[v.size() - 3] += 1; };
  for (const char* name : {"embed", "attn.norm", "attn.q", "attn.k_rope", "attn.out", "mlp.act",
                           "mlp.residual", "logits"})
    expect_same(spoilt(name, name[0] == 'a' || name[0] == 'm' ? 1 : -1, 0, shift), name);
}

// A sentence tells of the tensor and not of the rows that were asked about.
TEST_F(HalvingTest, LeavesShapesAsTheyAre) {
  FakeRun run = clean();
  for (RecordedTensor& tensor : run.passes[0].tensors) {
    if (tensor.point->name != "mlp.act" || tensor.layer != 1) continue;
    tensor.shape = {tensor.shape[0], tensor.shape[1] / 2};
    tensor.data = Tensor(tensor.shape, DType::bf16);
  }
  expect_same(run, "a tensor of half the width");
}

// Rows of hidden inputs share what these may be off, which is smoothed over a block of them.
TEST_F(HalvingTest, LeavesRegionsOfHiddenOpsAsTheyAre) {
  for (const FakeRun& seen :
       {clean(), spoilt("attn.residual", 1, 0, [](std::vector<double>& v) { v[40] += 1; })}) {
    FakeRun run = seen;
    for (Pass& pass : run.passes)
      std::erase_if(pass.tensors, [](const RecordedTensor& t) {
        return t.point->name == "attn.norm" || t.point->name == "attn.q" ||
               t.point->name == "attn.out";
      });
    expect_same(run, "hidden");
  }
}

// Contracts that round on the way have steps beside their results.
TEST_F(HalvingTest, LeavesChainsOfRoundingsAsTheyAre) {
  const auto hf = [](const Place& place) {
    const OpKind op = place.point->op;
    return op == OpKind::norm || op == OpKind::silu_mul ? RoundingContract::hf
                                                        : RoundingContract::fused;
  };
  FakeModel model(DType::bf16, {}, hf);
  FakeRun run = fake_run(model, DType::bf16);
  for (const Place& place : run.manifest.graph.places())
    run.manifest.contracts[std::string(place.point->name)] = hf(place);
  expect_same(run, "hf");
}

constexpr int32_t kLongPass = 60000;

Pass HalvingTest::long_pass(Oracle& oracle, int32_t wrong) {
  Pass pass;
  std::vector<Row> rows;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kLongPass; ++i) {
    pass.info.rows.push_back({{0, i}, i % 7});
    rows.push_back({0, i}), tokens.push_back(i % 7);
  }
  const Exact exact =
      oracle.evaluate({.place = {&point("embed"), -1}, .rows = rows, .tokens = tokens});
  std::vector<double> values(exact.want.begin(), exact.want.end());
  if (wrong >= 0) values[static_cast<size_t>(wrong) * kHidden] += 1;
  pass.tensors.push_back({.point = &point("embed"),
                          .layer = -1,
                          .rows = rows,
                          .dtype = DType::bf16,
                          .shape = exact.shape,
                          .data = rounded_tensor(values, exact.shape, DType::bf16)});
  return pass;
}

// Blocks after the first are asked about by another thread while one is measured.
TEST_F(HalvingTest, AsksAboutNoMoreFromThenOnInTheBackgroundToo) {
  for (const int32_t wrong : {-1, 0, kLongPass / 2, kLongPass - 1}) {
    const Pass pass = long_pass(oracle_, wrong);
    Narrow narrow(4000);
    Judge judge(clean().manifest, narrow, nullptr, nullptr, {.selection = {"embed", "", "", ""}});
    const std::vector<NodeId> flags = judge.judge(pass);
    EXPECT_EQ(flags.size(), wrong < 0 ? 0U : 1U);
    const Result result = judge.finish({}, false);
    EXPECT_EQ(result.judged, 1);
    if (wrong >= 0) {
      ASSERT_TRUE(result.first);
      EXPECT_EQ(result.first->position, wrong);
    }
    // The first block is halved until its parts fit; whoever asks next knows.
    EXPECT_LE(narrow.refused, 4);
    EXPECT_GT(narrow.largest_call, 2000U);
    EXPECT_LE(narrow.largest_call, 4000U);
  }
}

// While one thread waits for an answer another one finds that there is memory for two rows alone.
TEST_F(HalvingTest, KeepsTheFewestRowsThatAnyThreadFound) {
  class Beaten final : public FakeOracle {
   public:
    Exact evaluate(const OracleCall& call) override {
      if (call.rows.size() <= 2) return FakeOracle::evaluate(call);
      if (call.rows.size() == 64) asked_by->evaluate(rows_of_call(call, 0, 4));
      throw NoMemory("no memory for that many rows: ask about fewer");
    }
    HalvingOracle* asked_by = nullptr;
  } beaten;
  HalvingOracle halving(beaten);
  beaten.asked_by = &halving;
  const std::vector<Row> rows(64, Row{0, 0});
  const std::vector<int32_t> tokens(rows.size(), 1);
  const OracleCall call{.place = {&point("embed"), -1}, .rows = rows, .tokens = tokens};
  EXPECT_EQ(halving.evaluate(call).shape[0], std::ssize(rows));
  EXPECT_EQ(halving.most_rows(point("embed")), 2U);
}

TEST_F(HalvingTest, SaysThatThereIsNoMemoryOnlyOfASingleRow) {
  const FakeRun run = clean();
  Narrow none(0);
  Judge judge(run.manifest, none, nullptr, nullptr, {});
  try {
    judge.judge(run.passes[0]);
    FAIL() << "it judged what nobody could answer";
  } catch (const NoMemory& error) {
    EXPECT_STREQ(error.what(), "no memory for that many rows: ask about fewer");
  }
  EXPECT_GT(none.refused, 3);
  // In the background: all of the first block fits, nothing of the later ones.
  class First final : public FakeOracle {
   public:
    Exact evaluate(const OracleCall& call) override {
      if (call.rows.front().position > 0) throw NoMemory("none is left: free some");
      return FakeOracle::evaluate(call);
    }
  } first;
  Judge in_background(run.manifest, first, nullptr, nullptr, {.selection = {"embed", "", "", ""}});
  EXPECT_THROW(in_background.judge(long_pass(oracle_, -1)), NoMemory);
}

// Other errors are nobody's to ask again about.
TEST_F(HalvingTest, AsksAgainForMemoryAlone) {
  class Refusing final : public FakeOracle {
   public:
    Exact evaluate(const OracleCall&) override {
      ++calls;
      fail("no answer: ask another");
    }
  } refusing;
  HalvingOracle halving(refusing);
  const std::vector<Row> rows(5, Row{0, 0});
  const std::vector<int32_t> tokens(5);
  EXPECT_THROW(halving.evaluate({.place = {&point("embed"), -1}, .rows = rows, .tokens = tokens}),
               Error);
  EXPECT_EQ(refusing.calls, 1);
}

}  // namespace
}  // namespace lockstep
