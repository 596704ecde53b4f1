// A pass that is judged while it is computed, layer by layer, with what nothing reads later let go.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <tuple>

#include "src/judge/model_pass.h"
#include "tests/judge/judge_fixture.h"
#include "tests/judge/model_in_steps.h"

namespace lockstep {
namespace {

constexpr int kLayers = InSteps::kLayers;

struct Judgement {
  Result result;
  std::vector<NodeId> flags;
  size_t most_held = 0;  // tensors of the pass that had data when a part was judged
  size_t early = 0;      // parts that were judged before the pass had ended
};

// ended: called after each pass.
Judgement judged_live(
    const FakeRun& run, Oracle& oracle, const std::function<void()>& ended = [] {}) {
  InSteps exact(DType::f64), rounded(run.manifest.dtype);
  Judge judge(run.manifest, oracle, &exact, &rounded, {});
  Judgement live;
  const auto judge_part = [&](Pass& so_far) {
    const auto held = std::ranges::count_if(
        so_far.tensors, [](const RecordedTensor& t) { return !t.data.view().empty(); });
    live.most_held = std::max(live.most_held, static_cast<size_t>(held));
    for (const NodeId& flag : judge.judge_part(so_far)) live.flags.push_back(flag);
    if (judge.parts_left() == 0) return;
    for (RecordedTensor& t : so_far.tensors) {
      const Place place{t.point, t.layer};
      if (judge.has_judged(place) && !judge.reads_later(place)) t.data = {};
    }
  };
  for (const Pass& pass : run.passes) {
    Pass so_far{.info = pass.info};
    judge.begin_pass(so_far);
    for (const RecordedTensor& t : pass.tensors) {
      for (; judge.has_next_part(so_far); ++live.early) judge_part(so_far);
      so_far.tensors.push_back(t);
    }
    so_far.logits = pass.logits;
    while (judge.parts_left() > 0) judge_part(so_far);
    judge.end_pass(so_far);
    ended();
  }
  live.result = judge.finish(run.requests, true);
  return live;
}

// What a finding says.
auto fields(const Finding& f) {
  return std::tuple(text_of(f.node.place), f.node.pass, f.node.request, f.position, f.verdict,
                    f.value, f.limit, f.budgets, f.rule, f.want, f.got);
}

// What a place came to, over all passes too.
auto fields(const PlaceSummary& p) {
  return std::tuple(text_of(p.place), p.judged, p.verdict, p.worst_t1, p.worst_t2, p.worst_of_row,
                    p.worst_request, p.worst_position, p.worst_pass, p.introduced_rms,
                    p.propagated_rms, p.total_rms, p.has_t2, p.ancestor);
}
auto fields(const Reached& r) { return std::tuple(r.inner, r.rms, r.share, r.gain); }

// An oracle of a device, which measures nothing there: the models compute beside the judge then,
// and several places are asked about at once.
class DeviceOracle final : public FakeOracle {
 public:
  bool on_device() const override { return true; }
  bool asked_by_several() const override { return true; }
  int64_t least_measured() const override { return std::numeric_limits<int64_t>::max(); }
  Exact evaluate(const OracleCall& call) override {
    most = std::max<int>(most, ++asking);
    if (call.rows.size() > 1 && call.place.layer > reached) ++asked_of_later;
    // The reference is held to itself by single rows, which no pass of several requests has.
    std::this_thread::sleep_for(std::chrono::microseconds(call.rows.size() == 1 ? 3000 : 100));
    --asking;
    const std::lock_guard lock(mutex_);
    for (const TensorView& input : call.inputs) asked_of_nothing += input.empty() ? 1 : 0;
    for (size_t i = 0; i < call.owners.size(); ++i) {
      owned += call.owners[i] ? 1 : 0;
      foreign += call.owners[i] && call.owners[i].get() != call.inputs.at(i).data ? 1 : 0;
    }
    if (std::this_thread::get_id() != judge_) asked_ahead.insert(call.place.point->op);
    return FakeOracle::evaluate(call);
  }

  std::atomic<int> asking = 0, most = 0;  // threads, and how many at once
  std::atomic<int> reached = -1;          // the layer that is judged
  std::atomic<int> asked_of_later = 0;    // questions about layers after it
  std::set<OpKind> asked_ahead;           // by other threads than the judge's
  int asked_of_nothing = 0;               // inputs without numbers
  int owned = 0, foreign = 0;             // inputs with an owner, and those of other numbers

 private:
  std::mutex mutex_;
  std::thread::id judge_ = std::this_thread::get_id();
};

// Fails at a layer.
class Failing final : public InSteps {
 public:
  Failing(DType dtype, int at) : InSteps(dtype), at_(at) {}
  void advance(int through) override {
    check(through < at_, "layer {} fails", through);
    InSteps::advance(through);
  }

 private:
  int at_;
};

class PartsTest : public JudgeTest {
 protected:
  Judgement expect_same(const FakeRun& run) {
    const Result whole = judged(run);
    Judgement live = judged_live(run, oracle_);
    EXPECT_EQ(live.result.story, whole.story);
    EXPECT_EQ(live.result.verdict, whole.verdict);
    EXPECT_EQ(live.result.notes, whole.notes);
    EXPECT_EQ(live.result.limit_ratio, whole.limit_ratio);
    for (const Verdict v : {Verdict::bitwise, Verdict::rounding, Verdict::propagated,
                            Verdict::introduced, Verdict::structural, Verdict::inconclusive})
      EXPECT_EQ(count(live.result, v), count(whole, v)) << name_of(v);
    EXPECT_EQ(live.result.findings.size(), whole.findings.size());
    for (size_t i = 0; i < std::min(live.result.findings.size(), whole.findings.size()); ++i)
      EXPECT_EQ(fields(live.result.findings[i]), fields(whole.findings[i]));
    EXPECT_EQ(live.flags.size(), flags_.size());
    for (size_t i = 0; i < std::min(live.flags.size(), flags_.size()); ++i) {
      EXPECT_EQ(text_of(live.flags[i].place), text_of(flags_[i].place));
      EXPECT_EQ(live.flags[i].request, flags_[i].request);
    }
    return live;
  }
};

TEST_F(PartsTest, ALayerIsJudgedAndLetGoBeforeTheNext) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const FakeRun run = clean(dtype);
    const Judgement live = expect_same(run);
    EXPECT_EQ(live.result.verdict, RunVerdict::clean) << live.result.story;
    // Of each pass: embed and all layers but the last, which is judged with what comes after it.
    EXPECT_EQ(live.early, run.passes.size() * kLayers);
    EXPECT_LE(live.most_held, run.passes[0].tensors.size() * 2 / 3);
  }
}

TEST_F(PartsTest, FindingsAreThoseOfAWholePass) {
  const auto shift = [](std::vector<double>& v) { v[3] += 1; };
  int64_t propagated = 0;  // which says that the models were there
  for (const char* name : {"attn.q_rope", "attn.v", "attn.out", "mlp.act", "mlp.residual"})
    for (int layer = 0; layer < kLayers; ++layer) {
      const Judgement live = expect_same(spoilt(name, layer, 1, shift));
      EXPECT_EQ(live.result.verdict, RunVerdict::diverged) << name;
      propagated += count(live.result, Verdict::propagated);
    }
  EXPECT_GT(propagated, 10);
}

TEST_F(PartsTest, WhatIsComputedAndAskedAheadChangesNothing) {
  const auto shift = [](std::vector<double>& v) { v[3] += 1; };
  DeviceOracle oracle;
  FakeRun turned = clean();  // a cache whose axes are in another order, which is no input
  for (RecordedTensor& t : turned.passes[1].tensors)
    if (t.point->is_cache() && t.layer == 1)
      t.shape = {t.shape[0], 2, t.shape[3], t.shape[2]}, t.data = t.data.part(0, t.shape, t.dtype);
  FakeRun digests = clean();  // of one op, which others read
  for (RecordedTensor& t : digests.passes[1].tensors)
    if (t.point->name == "attn.o" && t.layer == 1) t.data = {};
  // In fp32 no node of so few rows has a gain, but all rows of a place together.
  FakeModel in_fp32(DType::f32);
  for (const FakeRun& run : {clean(), spoilt("attn.v", 0, 1, shift), turned, digests,
                             fake_run(in_fp32, DType::f32, 1, {200, 190})}) {
    // Else a graph could not be captured then.
    const auto nobody_asks = [&] { EXPECT_EQ(oracle.asking, 0); };
    const Judgement beside = judged_live(run, oracle, nobody_asks), alone = expect_same(run);
    EXPECT_EQ(beside.result.story, alone.result.story);
    EXPECT_EQ(beside.result.notes, alone.result.notes);
    EXPECT_EQ(beside.early, alone.early);
    EXPECT_EQ(beside.result.limit_ratio, alone.result.limit_ratio);
    ASSERT_EQ(beside.result.findings.size(), alone.result.findings.size());
    for (size_t i = 0; i < alone.result.findings.size(); ++i)
      EXPECT_EQ(fields(beside.result.findings[i]), fields(alone.result.findings[i]));
    ASSERT_EQ(beside.result.places.size(), alone.result.places.size());
    for (size_t i = 0; i < alone.result.places.size(); ++i)
      EXPECT_EQ(fields(beside.result.places[i]), fields(alone.result.places[i]));
    ASSERT_EQ(beside.result.reached.size(), alone.result.reached.size());
    for (const auto& [op, reached] : alone.result.reached)
      EXPECT_EQ(fields(beside.result.reached.at(op)), fields(reached)) << static_cast<int>(op);
    for (const Verdict v : {Verdict::rounding, Verdict::propagated, Verdict::introduced})
      EXPECT_EQ(count(beside.result, v), count(alone.result, v)) << name_of(v);
  }
  EXPECT_GT(oracle.most, 1);
  EXPECT_EQ(oracle.asked_of_nothing, 0);
  for (const OpKind op : {OpKind::norm, OpKind::linear, OpKind::rope, OpKind::attention,
                          OpKind::silu_mul, OpKind::add})
    EXPECT_TRUE(oracle.asked_ahead.contains(op)) << static_cast<int>(op);
}

TEST_F(PartsTest, TheNextLayerIsAskedAboutBeforeThisOneEndsWhereItIsThere) {
  const auto shift = [](std::vector<double>& v) { v[3] += 1; };
  for (const bool models : {true, false})
    for (const FakeRun& run : {clean(), spoilt("mlp.residual", 0, 1, shift)}) {
      DeviceOracle oracle;
      InSteps exact(DType::f64), rounded(DType::bf16);
      JudgeOptions options;
      options.progress = [&](std::string_view doing, int layer) {
        if (doing == "judging") oracle.reached = layer;
      };
      Judge judge(run.manifest, oracle, models ? &exact : nullptr, models ? &rounded : nullptr,
                  options);
      size_t flags = 0;
      for (const Pass& pass : run.passes) {
        oracle.reached = -1;
        flags += judge.judge(pass).size();
        EXPECT_EQ(oracle.asking, 0);
      }
      EXPECT_GT(oracle.asked_of_later, 0);
      EXPECT_GT(oracle.owned, 0);
      EXPECT_EQ(oracle.foreign, 0);
      const Result there = judge.finish(run.requests, true), plain = judged(run, models);
      EXPECT_EQ(there.story, plain.story);
      EXPECT_EQ(there.notes, plain.notes);
      EXPECT_EQ(flags, flags_.size());
      ASSERT_EQ(there.places.size(), plain.places.size());
      for (size_t i = 0; i < plain.places.size(); ++i)
        EXPECT_EQ(fields(there.places[i]), fields(plain.places[i]));
    }
}

TEST_F(PartsTest, ALongPassIsRememberedWhileItIsJudged) {
  FakeModel right(DType::bf16), wrong(DType::bf16);
  wrong.before_reading = [](FakeModel& m, int layer) {
    if (layer == 1) m.lane(1, 1)[7] = m.lane(1, 0)[305];
  };
  const std::vector<int> prompts = {310, 9};
  EXPECT_EQ(expect_same(fake_run(right, DType::bf16, 1, prompts)).result.verdict,
            RunVerdict::clean);
  const Result found = expect_same(fake_run(wrong, DType::bf16, 1, prompts)).result;
  expect_first(found, "layer 1 attn.kv", 0, 1, Verdict::introduced);
  EXPECT_NE(found.story.find("request 0 position 305 wrote"), std::string::npos) << found.story;
}

TEST_F(PartsTest, AModelThatFailsAheadIsHeardOfWhereItIsNeeded) {
  const FakeRun run = clean();
  for (const int layer : {0, 1}) {
    Failing model(DType::f64, layer);
    Background thread;
    ModelPass pass(
        model, run.passes[0].info, [](const Point&, int) { return true; }, {}, /*threads=*/1);
    pass.begin_advance(layer, thread);
    EXPECT_THROW(pass.advance(layer), Error) << layer;
  }
}

TEST_F(PartsTest, WhatAModelComputesAheadIsHeldFromItsTurnOn) {
  const FakeRun run = clean();
  InSteps model(DType::f64);
  std::vector<int> said;
  Background thread;
  ModelPass pass(
      model, run.passes[0].info, [](const Point&, int) { return true; },
      [&](int layer) { said.push_back(layer); }, /*threads=*/1);
  pass.begin_advance(0, thread);
  thread.wait();
  EXPECT_TRUE(pass.pass().tensors.empty());
  pass.advance(0);
  EXPECT_NE(pass.pass().find(point("attn.k"), 0), nullptr);
  EXPECT_TRUE(said.empty());
  pass.advance(kLayers);
  EXPECT_EQ(said, std::vector{1});
}

TEST_F(PartsTest, ALayerThatLacksATensorWaitsForTheEndOfThePass) {
  FakeRun run = clean();
  std::erase_if(run.passes[1].tensors,
                [](const RecordedTensor& t) { return t.layer == 0 && t.point->name == "attn.q"; });
  const Judgement live = expect_same(run);
  EXPECT_EQ(live.early, (run.passes.size() - 1) * kLayers + 1);
  expect_first(live.result, "layer 0 attn.q", 1, 0, Verdict::structural);
}

TEST_F(PartsTest, AModelHoldsWhatWasNotDropped) {
  const FakeRun run = clean();
  InSteps model(DType::f64);
  std::vector<int> said;
  ModelPass pass(
      model, run.passes[0].info, [](const Point& p, int) { return p.name != "attn.q"; },
      [&](int layer) { said.push_back(layer); }, /*threads=*/2);
  EXPECT_TRUE(pass.pass().tensors.empty());
  pass.advance(-1);
  EXPECT_EQ(pass.pass().tensors.size(), 1u);
  pass.advance(0);
  EXPECT_EQ(pass.pass().find(point("attn.q"), 0), nullptr);
  EXPECT_NE(pass.pass().find(point("attn.k"), 0), nullptr);
  EXPECT_EQ(pass.pass().find(point("attn.k"), 1), nullptr);
  pass.drop({&point("attn.k"), 0});
  EXPECT_EQ(pass.pass().find(point("attn.k"), 0), nullptr);
  pass.advance(kLayers);
  EXPECT_NE(pass.pass().find(point("logits"), -1), nullptr);
  EXPECT_EQ(said, (std::vector{0, 1}));
}

// So many rows that the oracle is asked about them in three blocks.
constexpr int32_t kManyRows = 60000;

// An oracle that is asked by one thread at a time, and has no answer about one position.
class OneAtATime final : public FakeOracle {
 public:
  explicit OneAtATime(int32_t refused, int64_t room = 0) : refused_(refused), room_(room) {}
  int64_t block_bytes() const override { return room_; }
  Exact evaluate(const OracleCall& call) override {
    EXPECT_EQ(asked_++, 0);
    const auto unknown = [this](const Row& row) { return row.position == refused_; };
    const bool refuses = std::ranges::any_of(call.rows, unknown);
    const Exact exact = FakeOracle::evaluate(call);
    --asked_;
    if (refuses) fail("position {} is refused: ask for another", refused_);
    return exact;
  }

 private:
  int32_t refused_;
  int64_t room_;
  std::atomic<int> asked_ = 0;
};

TEST_F(PartsTest, BlocksOfRowsAreJudgedWhileTheNextIsAsked) {
  const Place embed{&point("embed"), -1};
  Pass pass;
  std::vector<Row> rows;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kManyRows; ++i) {
    pass.info.rows.push_back({{0, i}, i % 7});
    rows.push_back({0, i}), tokens.push_back(i % 7);
  }
  const Exact exact = oracle_.evaluate({.place = embed, .rows = rows, .tokens = tokens});
  const std::vector<double> right(exact.want.begin(), exact.want.end());
  const auto flags_of = [&](int32_t wrong, int32_t refused, int64_t room = 0, int blocks = 3) {
    std::vector<double> values = right;
    if (wrong >= 0) values[static_cast<size_t>(wrong) * kHidden] += 1;
    Tensor made = rounded_tensor(values, exact.shape, DType::bf16);
    pass.tensors = {{.point = embed.point,
                     .layer = -1,
                     .rows = rows,
                     .dtype = DType::bf16,
                     .shape = exact.shape,
                     .data = std::move(made)}};
    OneAtATime oracle(refused, room);
    JudgeOptions options{.selection = {"embed", "", "", ""}};
    Judge judge(clean().manifest, oracle, nullptr, nullptr, options);
    const size_t flags = judge.judge(pass).size();
    EXPECT_EQ(oracle.calls, blocks);
    return flags;
  };
  EXPECT_EQ(flags_of(-1, -1), 0u);
  for (const int32_t row : {0, kManyRows / 2, kManyRows - 1}) {
    EXPECT_EQ(flags_of(row, -1), 1u);
    EXPECT_THROW(flags_of(-1, row), Error);
  }
  // An oracle that has room for all rows is asked once, and about no fewer than others are.
  EXPECT_EQ(flags_of(kManyRows / 2, -1, /*room=*/1 << 30, /*blocks=*/1), 1u);
  EXPECT_EQ(flags_of(kManyRows / 2, -1, /*room=*/1 << 10, /*blocks=*/3), 1u);
}

}  // namespace
}  // namespace lockstep
