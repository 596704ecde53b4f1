// Who sees which bug of a step that is a list of instructions: the checker, without a run; the
// judge, in a run of the list; and the timeline of that run, in which an instruction begins before
// what it reads has ended. Where one of them cannot see a bug, it must say that all is well.
#include <gtest/gtest.h>

#include <ranges>
#include <set>

#include "src/faults/faults.h"
#include "src/schedule/checker.h"
#include "src/schedule/make_schedule.h"
#include "src/weights/qwen_graph.h"
#include "tests/judged.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

const Checkpoint& bard() {
  static const Checkpoint open = Checkpoint::open(data_path("bard-qwen3"));
  return open;
}

InterpreterOptions right_step(int queues = 4) {
  return {make_schedule(scheduled_model(bard().config()), {.queues = queues, .kv_shares = 2})};
}

InterpreterOptions seeded(const std::string& fault) {
  InterpreterOptions step = right_step();
  Ops ops = cpu_ops();
  Engine::Hooks hooks;
  seed_fault({ops, hooks, bard().config(), nullptr, nullptr, &step}, parse_fault(fault));
  return step;
}

Result judged_step(const InterpreterOptions& step, const std::vector<FaultRequest>& faults,
                   DType dtype = DType::bf16, JudgeOptions judge = {},
                   std::function<void(const Pass&, const std::vector<NodeId>&)> seen = {}) {
  std::vector<Request> requests = {
      {.prompt = some_tokens(21, bard().config().vocab, 1), .max_new = 3},
      {.prompt = some_tokens(38, bard().config().vocab, 2), .max_new = 3}};
  EngineOptions engine{.dtype = dtype, .page_size = 8, .page_order_seed = 3, .chunk = 16};
  engine.pages = pages_for(requests, engine.page_size);
  return judge_run({.checkpoint = bard(),
                    .reference = open_reference(),
                    .engine = engine,
                    .step = step,
                    .requests = requests,
                    .faults = faults,
                    .judge = std::move(judge),
                    .seen = std::move(seen),
                    .audit = false,
                    .causes = false});
}

// Whether an instruction began before one had ended that the list has it wait for, by its spans.
bool shows_early_begin(const InterpreterOptions& step) {
  const std::vector<TimedWork> times = step.timeline->last();
  const std::vector<Instruction>& all = step.schedule.instructions;
  for (size_t reader = 0; reader < all.size(); ++reader)
    for (const Span& read : all[reader].reads)
      for (size_t writer = 0; writer < all.size(); ++writer)
        for (const Span& written : all[writer].writes)
          if (writer != reader && read.tensor == written.tensor && read.begin < written.end &&
              written.begin < read.end && times[reader].waited < times[writer].end)
            return true;
  return false;
}

// Whether the counters allow a read before its write, so that what a timeline shows of it hangs on
// the load of the machine unless the fault has the step run in that order.
bool allows_early_read(const ScheduleCheck& checked) {
  return std::ranges::any_of(checked.findings, [](const ScheduleCheck::Finding& finding) {
    return finding.fault == ScheduleCheck::Fault::early_read;
  });
}

struct Sees {
  const char* fault;
  const char* checker;  // the kind of its first finding; "": none
  const char* judge;    // the first point, in layer 1
  bool timeline;        // an instruction that began too early
};
const Sees kSees[] = {
    {"step-target-less", "early read", "attn.o", true},
    {"step-wait-left-out", "early read", "mlp.gate", true},
    {"step-block-missing", "missing", "mlp.gate", false},
    {"step-neighbours-rows", "missing", "mlp.down", false},
    {"step-wrong-layer", "missing", "attn.out", true},
    {"step-other-kv-head", "other rows", "attn.partial", false},
    {"step-merge-base-e", "", "attn.out", false},
    {"step-lse-without-most", "", "attn.lse", false},
    {"step-last-share-left-out", "early read", "attn.out", true},
    {"step-append-behind", "", "attn.kv", false},
    {"step-norm-over-block", "", "attn.q_norm", false},
};

// A fault that is put into the catalogue has to have a row in the table above.
TEST(InstructionFaults, AreSeenByWhoTheTableSays) {
  std::set<std::string_view> tried;
  for (const Sees& row : kSees) {
    SCOPED_TRACE(row.fault);
    tried.insert(row.fault);
    const std::string fault = std::string(row.fault) + "@layer=1";
    InterpreterOptions step = seeded(fault);
    const ScheduleCheck checked = check_schedule(step.schedule);
    const std::string first =
        checked.findings.empty() ? "" : std::string(name_of(checked.findings[0].fault));
    EXPECT_EQ(first, row.checker);
    EXPECT_EQ(allows_early_read(checked), row.timeline);

    step = right_step();
    step.timeline = std::make_shared<Timeline>();
    const Result result = judged_step(step, {parse_fault(fault)});
    ASSERT_TRUE(result.first) << result.story;
    EXPECT_EQ(result.first->node.place.point->name, row.judge) << result.story;
    EXPECT_EQ(result.first->node.place.layer, 1) << result.story;
    // The run's own list is the edited one, in the same places.
    step.schedule = seeded(fault).schedule;
    if (step.schedule.instructions.size() == step.timeline->last().size()) {
      EXPECT_EQ(shows_early_begin(step), row.timeline);
    }
  }
  for (const Fault& fault : faults())
    EXPECT_EQ(fault.seat == Fault::Seat::instructions, tried.contains(fault.name)) << fault.name;
}

// The shares of an attention, the logarithms of their sums, and what they are merged to: a bug in
// one of the three is a finding there alone, whatever comes of it in the others.
struct SharesSee {
  const char* fault;
  std::set<std::string_view> points;  // all that are findings in layer 1
};
const SharesSee kSharesSee[] = {
    {"step-other-kv-head", {"attn.partial", "attn.lse"}},
    {"step-lse-without-most", {"attn.lse"}},
    {"step-merge-base-e", {"attn.out"}},
    {"step-last-share-left-out", {"attn.out"}},
};

std::set<std::string_view> wrong_points(const Result& result) {
  std::set<std::string_view> points;
  for (const Finding& finding : result.findings)
    if (finding.node.place.layer == 1) points.insert(finding.node.place.point->name);
  return points;
}

TEST(InstructionFaults, OfSharesAreToldApart) {
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  for (size_t turn = 0; turn < std::size(kSharesSee); ++turn)
    for (size_t d = 0; d < std::size(dtypes); ++d) {
      if (!whole() && d != turn % std::size(dtypes)) continue;
      const SharesSee& row = kSharesSee[turn];
      const DType dtype = dtypes[d];
      SCOPED_TRACE(testing::Message() << row.fault << " " << name_of(dtype));
      const std::vector<FaultRequest> fault = {parse_fault(std::string(row.fault) + "@layer=1")};
      const Result result = judged_step(right_step(), fault, dtype);
      EXPECT_EQ(wrong_points(result), row.points) << result.story;
      // Where the merge is right, what it makes of wrong shares is wrong by them.
      const auto of_out = std::ranges::find_if(result.places, [](const PlaceSummary& place) {
        return place.place == Place{&point("attn.out"), 1};
      });
      ASSERT_NE(of_out, result.places.end());
      EXPECT_EQ(of_out->verdict,
                row.points.contains("attn.out") ? Verdict::introduced : Verdict::propagated);
      for (const Finding& finding : result.findings)
        EXPECT_EQ(finding.rule.find("merged wrong") != std::string::npos,
                  finding.node.place == Place(&point("attn.out"), 1));
    }
}

// Nobody then says that the shares are wrong.
TEST(InstructionFaults, OfSharesAreSeenInWhatTheyAreMergedTo) {
  const std::vector<FaultRequest> fault = {parse_fault("step-other-kv-head@layer=1")};
  const Result result = judged_step(right_step(), fault, DType::bf16,
                                    {.selection = Selection("attn.out", "", "", "")});
  ASSERT_TRUE(result.first) << result.story;
  EXPECT_EQ(wrong_points(result), (std::set<std::string_view>{"attn.out"}));
}

// Nor is a share itself, where what it reads was not recorded, held to more than that allows.
TEST(InstructionFaults, OfSharesAreSeenBehindWhatWasNotRecorded) {
  const std::vector<FaultRequest> fault = {parse_fault("step-lse-without-most@layer=1")};
  for (const char* hidden : {"attn.q_rope", "attn.kv", "attn.out"}) {
    SCOPED_TRACE(hidden);
    const JudgeOptions judge{
        .recorded = [hidden](const Place& place) { return place.point->name != hidden; }};
    const Result right = judged_step(right_step(), {}, DType::bf16, judge);
    EXPECT_FALSE(right.first) << right.story;
    EXPECT_GT(right.hidden, 0);
    EXPECT_EQ(right.judged, right.expected) << right.story;
    const Result wrong = judged_step(right_step(), fault, DType::bf16, judge);
    ASSERT_TRUE(wrong.first) << wrong.story;
    EXPECT_EQ(wrong.first->node.place, (Place{&point("attn.lse"), 1})) << wrong.story;
  }
}

// A trace may have a logarithm more than it has shares: then nobody can say what they are merged
// to.
TEST(InstructionFaults, OfSharesOfUnlikeNumbersAreSeenAsWrong) {
  std::vector<Pass> passes;
  const std::vector<FaultRequest> fault = {parse_fault("step-merge-base-e@layer=1")};
  judged_step(right_step(), fault, DType::bf16, {}, [&](const Pass& pass, const auto&) {
    for (RecordedTensor& lse : passes.emplace_back(pass).tensors)
      if (*lse.point == point("attn.lse")) {
        lse.shape = {lse.shape[0], 3, lse.shape[2]};
        lse.data = Tensor(lse.shape, DType::f32);
        std::fill_n(lse.data.as<float>(), lse.shape.count(), 1.0F);
      }
  });
  const auto oracle = open_reference().oracle(bard(), {.dtype = DType::bf16});
  Judge judge({.provenance = {{"page_size", "8"}},
               .graph = qwen_graph_of(bard().config(), false, /*in_shares=*/true),
               .dtype = DType::bf16,
               .level = TraceLevel::full},
              *oracle, nullptr, nullptr,
              {.selection = Selection("attn.lse,attn.partial,attn.out", "1", "", "")});
  for (const Pass& pass : passes) judge.judge(pass);
  const Result result = judge.finish({}, true);
  EXPECT_EQ(wrong_points(result), (std::set<std::string_view>{"attn.lse", "attn.out"}))
      << result.story;
}

TEST(InstructionFaults, ARightStepIsClean) {
  InterpreterOptions step = right_step();
  step.timeline = std::make_shared<Timeline>();
  EXPECT_TRUE(check_schedule(step.schedule).findings.empty());
  const Result result = judged_step(step, {});
  EXPECT_FALSE(result.first) << result.story;
  EXPECT_FALSE(shows_early_begin(step));
}

// A wait for more than is ever raised is the checker's, and refused where it would be run; a block
// that is computed twice alike is the checker's alone.
TEST(InstructionFaults, SomeAreTheCheckersAlone) {
  InterpreterOptions more = right_step(), twice = right_step();
  for (Instruction& in : more.schedule.instructions)
    if (in.opcode == Opcode::o_residual && in.layer == 1) ++in.waits[0].value;
  EXPECT_EQ(check_schedule(more.schedule).findings[0].fault, ScheduleCheck::Fault::unreachable);
  EXPECT_THROW(judged_step(more, {}), Error);
  const auto block = std::ranges::find(twice.schedule.instructions, Opcode::norm_gate_up_silu,
                                       &Instruction::opcode);
  Instruction again = *block;
  again.raises.clear();
  twice.schedule.instructions.push_back(again);
  EXPECT_EQ(check_schedule(twice.schedule).findings[0].fault, ScheduleCheck::Fault::repeated);
  EXPECT_FALSE(judged_step(twice, {}).first);
}

TEST(InstructionFaults, WantAListOfInstructions) {
  Ops ops = cpu_ops();
  Engine::Hooks hooks;
  EXPECT_THROW(seed_fault({ops, hooks, bard().config()}, {.name = "step-append-behind"}), Error);
}

}  // namespace
}  // namespace lockstep
