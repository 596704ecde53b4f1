// Passes that are judged while they are shown, by the thread that shows them or by another.
#include "src/session/live_judge.h"

#include <atomic>
#include <thread>

#include "tests/judge/judge_fixture.h"
#include "tests/judge/model_in_steps.h"

namespace lockstep {
namespace {

// An oracle that knows which thread judged, and has no answer about one position of a layer.
class Refusing final : public FakeOracle {
 public:
  explicit Refusing(int32_t position = -1) : refused_(position) {}
  Exact evaluate(const OracleCall& call) override {
    if (std::this_thread::get_id() != own_) beside = true;
    for (const Row& row : call.rows)
      check(row.position != refused_ || call.place.layer != 0, "position {} is refused", refused_);
    return FakeOracle::evaluate(call);
  }

  std::atomic<bool> beside = false;

 private:
  int32_t refused_;
  std::thread::id own_ = std::this_thread::get_id();
};

void show(const Pass& pass, Sink& sink) {
  sink.begin(pass.info);
  for (const RecordedTensor& t : pass.tensors)
    sink.record({t.point, t.layer, t.rows, t.data, std::nullopt});
  sink.end();
}

class LiveJudgeTest : public JudgeTest {
 protected:
  struct Told {
    std::vector<NodeId> flags;      // of the parts
    std::vector<size_t> of_passes;  // how many, when each ended
    size_t kept = 0;                // tensors that had data then
  };

  Result live(const FakeRun& run, Oracle& oracle, bool beside, Told* told = nullptr) {
    InSteps exact(DType::f64), rounded(run.manifest.dtype);
    Judge judge(run.manifest, oracle, &exact, &rounded, {});
    Told own;
    Told& all = told ? *told : own;
    LiveJudge shown(judge, {.beside = beside,
                            .judged =
                                [&](const Pass&, const std::vector<NodeId>& flags) {
                                  all.flags.insert(all.flags.end(), flags.begin(), flags.end());
                                },
                            .ended =
                                [&](const Pass& pass, const std::vector<NodeId>& flags) {
                                  all.of_passes.push_back(flags.size());
                                  for (const RecordedTensor& t : pass.tensors)
                                    all.kept += !t.data.view().empty();
                                }});
    for (const Pass& pass : run.passes) show(pass, shown);
    return judge.finish(run.requests, true);
  }
};

TEST_F(LiveJudgeTest, SaysTheSameWhoeverJudges) {
  const auto shift = [](std::vector<double>& v) { v[3] += 1; };
  for (const FakeRun& run : {clean(), spoilt("attn.q_rope", 1, 1, shift),
                             spoilt("mlp.act", 0, 0, shift), spoilt("logits", -1, 2, shift)}) {
    const Result whole = judged(run);
    std::vector<size_t> flags, kept;
    for (const bool beside : {false, true}) {
      Refusing oracle;
      Told told;
      const Result result = live(run, oracle, beside, &told);
      EXPECT_EQ(oracle.beside, beside);
      EXPECT_EQ(result.story, whole.story);
      EXPECT_EQ(result.verdict, whole.verdict);
      EXPECT_EQ(result.notes, whole.notes);
      EXPECT_EQ(count(result, Verdict::propagated), count(whole, Verdict::propagated));
      EXPECT_EQ(told.flags.size(), flags_.size());
      EXPECT_EQ(told.of_passes.size(), run.passes.size());
      flags.push_back(told.flags.size());
      kept.push_back(told.kept);
    }
    EXPECT_EQ(flags[0], flags[1]);
    EXPECT_EQ(kept[0], kept[1]);  // nothing is kept longer
  }
}

TEST_F(LiveJudgeTest, WhoeverShowsIsToldWhatEndedTheJudging) {
  const FakeRun run = clean();
  for (const bool beside : {false, true}) {
    Refusing oracle(/*position=*/5);
    EXPECT_THROW(live(run, oracle, beside), Error) << beside;
  }
}

}  // namespace
}  // namespace lockstep
