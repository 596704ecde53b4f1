// Faults that a list of instructions can have, each in a schedule that is right without it: what
// the checker calls it, and of which instructions it says so.
#include <gtest/gtest.h>

#include "tests/schedule/against_checker.h"
#include "tests/schedule/made_schedules.h"

namespace lockstep {
namespace {

// Its place in the list; by opcode and layer the first, or the one at a row.
int place_of(const Schedule& schedule, Opcode opcode, int layer, int64_t begin, int64_t share = 0) {
  for (size_t i = 0; i < schedule.instructions.size(); ++i) {
    const Instruction& in = schedule.instructions[i];
    if (in.opcode == opcode && in.layer == layer && in.begin == begin && in.share == share)
      return static_cast<int>(i);
  }
  fail("the test's schedule has no such instruction");
}

Schedule made(ScheduleOptions options = {.queues = 4, .kv_shares = 2, .down_shares = 1}) {
  Schedule schedule = make_schedule(two_layers(), options);
  EXPECT_TRUE(check_schedule(schedule).findings.empty());
  return schedule;
}

// Takes from the opcode, again, what it reads and writes.
void refresh(const Schedule& schedule, Instruction& in) {
  Effects effects = effects_of(schedule, in);
  in.reads = std::move(effects.reads);
  in.writes = std::move(effects.writes);
}

// A finding as a test writes it: the places of the instructions, and the point and numbers.
struct Expected {
  ScheduleCheck::Fault fault;
  int first = -1, second = -1;
  std::string numbers;  // "attn.out of layer 1 [0, 32)"; "": any
};

std::string numbers_of(const Schedule& schedule, const std::optional<Span>& span) {
  if (!span) return "none";
  const ScheduledTensor& tensor = schedule.tensors[span->tensor];
  return fmt::format("{} of layer {} [{}, {})", tensor.point, tensor.layer, span->begin, span->end);
}

bool is(const Schedule& schedule, const ScheduleCheck::Finding& finding, const Expected& expected) {
  return finding.fault == expected.fault && finding.first == expected.first &&
         finding.second == expected.second &&
         (expected.numbers.empty() || numbers_of(schedule, finding.span) == expected.numbers);
}

// The findings are those, in any order, and the machine shows each order; where `others` are
// allowed, those are among them.
void expect_findings(const Schedule& schedule, const std::vector<Expected>& all,
                     bool others = false) {
  const ScheduleCheck checked = check_schedule(schedule);
  const Machine machine(schedule);
  std::string found;
  for (const ScheduleCheck::Finding& finding : checked.findings) {
    found += fmt::format("{} {} {} {}: {}\n", name_of(finding.fault), finding.first, finding.second,
                         numbers_of(schedule, finding.span), finding.says);
    EXPECT_EQ(is_of_order(finding.fault) ? not_shown(machine, checked, finding) : "", "");
  }
  for (const Expected& expected : all)
    EXPECT_EQ(std::ranges::count_if(checked.findings,
                                    [&](const ScheduleCheck::Finding& finding) {
                                      return is(schedule, finding, expected);
                                    }),
              1)
        << name_of(expected.fault) << " " << expected.first << " " << expected.second << " "
        << expected.numbers << " was wanted once among\n"
        << found;
  EXPECT_TRUE(others || checked.findings.size() == all.size()) << found;
  EXPECT_EQ(exit_status(checked), 1);
}

// A norm over the 8 rows that an instruction holds, of heads of 16.
TEST(ScheduleFaults, NormOverTheBlock) {
  for (const int64_t row : {0, 48, 64, 80, 96}) {  // of q, q, k, k and v
    Schedule schedule = made();
    const int place = place_of(schedule, Opcode::norm_qkv_rope_append, 1, row);
    Instruction half = schedule.instructions[place];
    half.end = row + 8;
    refresh(schedule, half);
    schedule.instructions[place].begin = row + 8;
    refresh(schedule, schedule.instructions[place]);
    for (Instruction& in : schedule.instructions)
      for (Instruction::CounterUse& wait : in.waits)
        if (wait.counter == half.raises[0].counter) ++wait.value;
    schedule.instructions.push_back(half);
    std::swap(schedule.instructions[place], schedule.instructions.back());
    const auto last = static_cast<int>(schedule.instructions.size()) - 1;
    // The other half comes last in its queue, which stands still for it.
    schedule.instructions.back().queue = schedule.queues++;
    if (row == 96) {
      EXPECT_TRUE(check_schedule(schedule).findings.empty());
      continue;
    }
    expect_findings(schedule, {{ScheduleCheck::Fault::split_head, -1, place},
                               {ScheduleCheck::Fault::split_head, -1, last}});
    // RoPE turns number i of a head with number i + 8, norm or not.
    schedule.model.qk_norm = false;
    expect_findings(schedule, {{ScheduleCheck::Fault::split_head, -1, place},
                               {ScheduleCheck::Fault::split_head, -1, last}});
    EXPECT_NE(check_schedule(schedule).findings[0].says.find("RoPE"), std::string::npos);
  }
}

TEST(ScheduleFaults, TargetOneLess) {
  Schedule schedule = made();
  const int place = place_of(schedule, Opcode::partial_attention, 1, 1, 1);
  --schedule.instructions[place].waits[0].value;
  // Two of the four that raise the counter can be the one that is missed, the other two are before
  // it in its queue.
  expect_findings(
      schedule,
      {{ScheduleCheck::Fault::early_read, place_of(schedule, Opcode::norm_qkv_rope_append, 1, 32),
        place, "attn.q_rope of layer 1 [32, 48)"},
       {ScheduleCheck::Fault::early_read, place_of(schedule, Opcode::norm_qkv_rope_append, 1, 80),
        place, "attn.kv of layer 1 [16, 32)"}});
  for (Instruction& in : schedule.instructions) in.queue = 0;
  EXPECT_TRUE(check_schedule(schedule).findings.empty()) << "one queue keeps all in order";
}

TEST(ScheduleFaults, TargetOneMore) {
  Schedule schedule = made();
  const int place = place_of(schedule, Opcode::o_residual, 0, 16);
  ++schedule.instructions[place].waits[0].value;
  expect_findings(schedule, {{ScheduleCheck::Fault::unreachable, -1, place}}, true);
}

TEST(ScheduleFaults, WaitLeftOut) {
  Schedule schedule = made();
  const int place = place_of(schedule, Opcode::norm_gate_up_silu, 0, 16);
  schedule.instructions[place].waits.clear();
  expect_findings(schedule,
                  {{ScheduleCheck::Fault::early_read, place_of(schedule, Opcode::o_residual, 0, 0),
                    place, "attn.residual of layer 0 [0, 16)"},
                   {ScheduleCheck::Fault::early_read, place_of(schedule, Opcode::o_residual, 0, 16),
                    place, "attn.residual of layer 0 [16, 32)"}},
                  true);
}

TEST(ScheduleFaults, BlockWrittenTwice) {
  Schedule schedule = made();
  const int place = place_of(schedule, Opcode::norm_head, -1, 16);
  schedule.instructions.push_back(schedule.instructions[place]);
  const auto last = static_cast<int>(schedule.instructions.size()) - 1;
  expect_findings(schedule,
                  {{ScheduleCheck::Fault::repeated, place, last, "logits of layer -1 [16, 32)"}});
}

TEST(ScheduleFaults, BlockNotWritten) {
  Schedule schedule = made();
  schedule.instructions.erase(schedule.instructions.begin() +
                              place_of(schedule, Opcode::norm_head, -1, 32));
  expect_findings(schedule,
                  {{ScheduleCheck::Fault::missing, -1, -1, "logits of layer -1 [32, 48)"}});
}

TEST(ScheduleFaults, BlockWithItsNeighboursColumns) {
  Schedule schedule = made();
  const int place = place_of(schedule, Opcode::norm_gate_up_silu, 1, 16),
            neighbour = place_of(schedule, Opcode::norm_gate_up_silu, 1, 32),
            reader = place_of(schedule, Opcode::down_residual, 1, 0);
  Instruction& in = schedule.instructions[place];
  in.begin = 32;
  in.end = 48;
  refresh(schedule, in);
  expect_findings(
      schedule,
      {{ScheduleCheck::Fault::missing, -1, reader, "mlp.act of layer 1 [16, 32)"},
       {ScheduleCheck::Fault::repeated, place, neighbour, "mlp.act of layer 1 [32, 48)"}});
  in.begin = 16;  // its rows again, but the other's columns
  in.end = 32;
  expect_findings(
      schedule, {{ScheduleCheck::Fault::missing, -1, reader, "mlp.act of layer 1 [16, 32)"},
                 {ScheduleCheck::Fault::repeated, place, neighbour, "mlp.act of layer 1 [32, 48)"},
                 {ScheduleCheck::Fault::other_rows, -1, place, "mlp.act of layer 1 [16, 32)"},
                 {ScheduleCheck::Fault::other_rows, -1, place, "mlp.act of layer 1 [32, 48)"}});
}

TEST(ScheduleFaults, InstructionOfTheWrongLayer) {
  Schedule schedule = made();
  const int place = place_of(schedule, Opcode::attention_reduction, 1, 0),
            other = place_of(schedule, Opcode::attention_reduction, 0, 0);
  schedule.instructions[place].layer = 0;
  refresh(schedule, schedule.instructions[place]);
  expect_findings(schedule,
                  {{ScheduleCheck::Fault::missing, -1, place_of(schedule, Opcode::o_residual, 1, 0),
                    "attn.out of layer 1 [0, 32)"},
                   {ScheduleCheck::Fault::repeated, other, place, "attn.out of layer 0 [0, 32)"}},
                  true);
}

TEST(ScheduleFaults, PartialOfAnotherKvHead) {
  Schedule schedule = made();
  const int place = place_of(schedule, Opcode::partial_attention, 1, 1, 0);
  schedule.instructions[place].reads[1] = {schedule.tensor("attn.kv", 1), 0, 16};
  expect_findings(
      schedule,
      {{ScheduleCheck::Fault::other_rows, -1, place, "attn.kv of layer 1 [0, 16)"},
       {ScheduleCheck::Fault::other_rows, -1, place, "attn.kv of layer 1 [16, 32)"},
       {ScheduleCheck::Fault::early_read, place_of(schedule, Opcode::norm_qkv_rope_append, 1, 64),
        place, "attn.kv of layer 1 [0, 16)"}});
}

TEST(ScheduleFaults, LastPartialLeftOut) {
  Schedule schedule = made();
  const int place = place_of(schedule, Opcode::attention_reduction, 1, 1);
  --schedule.instructions[place].waits[0].value;
  const auto of_share = [&](int64_t share) {
    return place_of(schedule, Opcode::partial_attention, 1, 1, share);
  };
  // The head's parts lie one share after another: of two heads of 16 numbers each.
  expect_findings(
      schedule,
      {{ScheduleCheck::Fault::early_read, of_share(0), place, "attn.partial of layer 1 [64, 96)"},
       {ScheduleCheck::Fault::early_read, of_share(0), place, "attn.lse of layer 1 [4, 6)"},
       {ScheduleCheck::Fault::early_read, of_share(1), place, "attn.partial of layer 1 [96, 128)"},
       {ScheduleCheck::Fault::early_read, of_share(1), place, "attn.lse of layer 1 [6, 8)"}});
  ++schedule.instructions[place].waits[0].value;
  for (Span& span : schedule.instructions[place].reads) span.end -= (span.end - span.begin) / 2;
  std::vector<Expected> expected;
  for (const char* numbers : {"attn.partial of layer 1 [64, 128)", "attn.lse of layer 1 [4, 8)",
                              "attn.partial of layer 1 [64, 96)", "attn.lse of layer 1 [4, 6)"})
    expected.push_back({ScheduleCheck::Fault::other_rows, -1, place, numbers});
  expect_findings(schedule, expected);
}

// With shares, mlp.down is added where attn.residual lies, which gate and up still have to read.
TEST(ScheduleFaults, DownShareAddedBeforeTheStreamWasRead) {
  Schedule schedule = made({.queues = 4, .kv_shares = 1, .down_shares = 2});
  const int place = place_of(schedule, Opcode::down_residual, 0, 16, 1);
  schedule.instructions[place].waits[0].value -= 1;
  std::vector<Expected> expected;
  // The fourth of gate and up is before it in its queue.
  for (const int64_t row : {0, 16, 32})
    expected.push_back({ScheduleCheck::Fault::overwritten,
                        place_of(schedule, Opcode::norm_gate_up_silu, 0, row), place,
                        "attn.residual of layer 0 [16, 32)"});
  expected.push_back({ScheduleCheck::Fault::early_read,
                      place_of(schedule, Opcode::norm_gate_up_silu, 0, 32), place,
                      "mlp.act of layer 0 [32, 48)"});
  expect_findings(schedule, expected);
}

// Both shares of a block are there, but it is twice the same one.
TEST(ScheduleFaults, OneDownShareTwiceAndOneNot) {
  Schedule schedule = made({.queues = 4, .kv_shares = 1, .down_shares = 2});
  const int place = place_of(schedule, Opcode::down_residual, 1, 16, 1),
            other = place_of(schedule, Opcode::down_residual, 1, 16, 0);
  schedule.instructions[place].share = 0;
  refresh(schedule, schedule.instructions[place]);
  expect_findings(
      schedule,
      {{ScheduleCheck::Fault::repeated, other, place, "mlp.residual of layer 1 [16, 32)"}}, true);
}

// The list says in two pieces what the opcode's rows are in one.
TEST(ScheduleFaults, SpansInPiecesAreNone) {
  Schedule schedule = made();
  Instruction& in = schedule.instructions[place_of(schedule, Opcode::norm_gate_up_silu, 1, 16)];
  const Span whole = in.reads[0];
  in.reads = {{whole.tensor, 16, 32}, {whole.tensor, 0, 20}};
  EXPECT_TRUE(check_schedule(schedule).findings.empty());
}

// A half of a head, of which the list says that it writes nothing.
TEST(ScheduleFaults, PartOfAHeadWithoutWrites) {
  Schedule schedule = made();
  const int place = place_of(schedule, Opcode::norm_qkv_rope_append, 1, 64);
  schedule.instructions[place].end = 72;
  schedule.instructions[place].writes.clear();
  expect_findings(
      schedule,
      {{ScheduleCheck::Fault::split_head, -1, place, "attn.kv of layer 1 [0, 8)"},
       {ScheduleCheck::Fault::other_rows, -1, place, "attn.kv of layer 1 [0, 8)"},
       {ScheduleCheck::Fault::missing, -1, place_of(schedule, Opcode::partial_attention, 1, 0),
        "attn.kv of layer 1 [0, 16)"}});
}

// Instructions of a queue each, without a wait, with what they read and write.
Schedule free_ones(std::vector<ScheduledTensor> tensors,
                   const std::vector<std::pair<std::vector<Span>, std::vector<Span>>>& all) {
  Schedule schedule{.model = two_layers(), .queues = static_cast<int>(all.size())};
  schedule.tensors = std::move(tensors);
  schedule.counters = {"a"};
  for (const auto& [reads, writes] : all) {
    const auto place = static_cast<int>(schedule.instructions.size());
    schedule.instructions.push_back(
        {.id = place, .queue = place, .name = "load", .reads = reads, .writes = writes});
  }
  return schedule;
}

// Number 1 of the first tensor lies where that of the third one does: the second is too narrow.
TEST(ScheduleFaults, OverwrittenByTheNextButOne) {
  Schedule schedule = free_ones({{"a", -1, 2, 0, true, "m"},
                                 {"b", -1, 1, 0, false, "m"},
                                 {"c", -1, 2, 0, false, "m"},
                                 {"d", -1, 1, 0, false, "d"}},
                                {{{}, {{1, 0, 1}}}, {{}, {{2, 0, 2}}}, {{{0, 1, 2}}, {{3, 0, 1}}}});
  schedule.instructions[0].raises = {{0, 1}};
  schedule.instructions[1].waits = {{0, 1}};
  expect_findings(schedule, {{ScheduleCheck::Fault::overwritten, 2, 1, "a of layer -1 [1, 2)"}});
  schedule.instructions[2].raises = {{0, 1}};
  schedule.instructions[1].waits = {{0, 2}};
  EXPECT_TRUE(check_schedule(schedule).findings.empty());
}

TEST(ScheduleFaults, ReadsWhatItWritesItself) {
  const Schedule schedule = free_ones({{"a", -1, 4, 0, false, "m"}}, {{{{0, 1, 3}}, {{0, 0, 4}}}});
  expect_findings(schedule, {{ScheduleCheck::Fault::early_read, -1, 0, "a of layer -1 [1, 3)"}});
}

// Weights go through a ring of two slots: load i waits for the use of i - 2.
Schedule ring(int layers) {
  Schedule schedule{.model = two_layers(), .queues = 2};
  schedule.model.layers = layers;
  for (int i = 0; i < layers; ++i) {
    schedule.tensors.push_back({"weights", i, 64, 0, false, fmt::format("slot {}", i % 2)});
    schedule.tensors.push_back({"out", i, 8, 0, false, fmt::format("out {}", i)});
    schedule.counters.push_back(fmt::format("loaded {}", i));
    schedule.counters.push_back(fmt::format("used {}", i));
  }
  for (int i = 0; i < layers; ++i) {
    Instruction load{.id = 100 + i, .queue = 0, .name = "load", .layer = i};
    load.writes = {{2 * i, 0, 64}};
    load.raises = {{2 * i, 1}};
    if (i >= 2) load.waits = {{2 * (i - 2) + 1, 1}};
    Instruction use{.id = 200 + i, .queue = 1, .name = "use", .layer = i};
    use.reads = {{2 * i, 0, 64}};
    use.writes = {{2 * i + 1, 0, 8}};
    use.waits = {{2 * i, 1}};
    use.raises = {{2 * i + 1, 1}};
    schedule.instructions.push_back(load);
    schedule.instructions.push_back(use);
  }
  return schedule;
}

TEST(ScheduleFaults, WeightsOverwriteARingSlotStillInUse) {
  Schedule schedule = ring(5);
  EXPECT_TRUE(check_schedule(schedule).findings.empty());
  schedule.instructions[6].waits.clear();  // the load of layer 3
  expect_findings(schedule,
                  {{ScheduleCheck::Fault::overwritten, 3, 6, "weights of layer 1 [0, 64)"}});
  schedule = ring(5);
  schedule.instructions[6].waits[0] = {1, 1};  // for the use of layer 0, which its neighbour needs
  expect_findings(schedule,
                  {{ScheduleCheck::Fault::overwritten, 3, 6, "weights of layer 1 [0, 64)"}});
  schedule.instructions[4].waits[0] = {3, 1};  // the neighbour for that of layer 1, before it
  EXPECT_TRUE(check_schedule(schedule).findings.empty()) << "the queues keep what is swapped";
}

// The load of layer 2 waits for its own use.
TEST(ScheduleFaults, WaitsForEachOther) {
  Schedule schedule = ring(4);
  schedule.instructions[4].waits = {{2 * 2 + 1, 1}};
  expect_findings(schedule, {}, true);
  const ScheduleCheck checked = check_schedule(schedule);
  EXPECT_EQ(count_of(checked, ScheduleCheck::Fault::deadlock), 1);
  const auto deadlock = std::ranges::find(checked.findings, ScheduleCheck::Fault::deadlock,
                                          &ScheduleCheck::Finding::fault);
  // All that run are the first two loads and their uses.
  EXPECT_EQ(std::set<int>(deadlock->order.begin(), deadlock->order.end()),
            (std::set<int>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace lockstep
