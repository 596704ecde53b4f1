// Schedules that Lockstep makes: right in every execution, found so, and quickly, at the sizes of
// models that people serve.
#include <gtest/gtest.h>

#include <ctime>

#include "tests/schedule/against_checker.h"
#include "tests/schedule/made_schedules.h"

namespace lockstep {
namespace {

TEST(MadeSchedule, IsRightInEveryExecutionTried) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const ScheduledModel model = some_model(random, 4, 90);
    const ScheduleOptions options{
        .queues = static_cast<int>(between(random, 1, i % 2 == 0 ? 8 : 200)),
        .kv_shares = between(random, 1, 5),
        .down_shares = between(random, 1, 4)};
    const Schedule schedule = make_schedule(model, options);
    SCOPED_TRACE(fmt::format("schedule {} of {} queues", i, options.queues));
    const Machine machine(schedule);
    for (int execution = 0; execution < 20; ++execution) {
      const Machine::State end = random_execution(machine, random);
      EXPECT_EQ(end.left, 0);
      EXPECT_TRUE(end.wrongs.empty());
    }
    const ScheduleCheck checked = check_schedule(schedule);
    ASSERT_TRUE(checked.findings.empty()) << checked.findings.front().says;
    EXPECT_EQ(checked.not_kept, 0);
    EXPECT_EQ(checked.instructions, std::ssize(schedule.instructions));
    int64_t numbers = 0;
    for (const ScheduledTensor& tensor : schedule.tensors)
      if (!tensor.given) numbers += tensor.width;
    EXPECT_EQ(checked.numbers, numbers);
    EXPECT_EQ(exit_status(checked), 0);
  }
}

TEST(MadeSchedule, DealsOutNoMoreBlocksOfAnOpThanThereAreQueues) {
  const Schedule schedule = make_schedule(qwen3_600m(), {.queues = 132});
  std::map<std::pair<Opcode, int>, int64_t> blocks, rows;
  for (const Instruction& in : schedule.instructions) {
    ++blocks[{in.opcode, in.layer}];
    rows[{in.opcode, in.layer}] += in.end - in.begin;
    EXPECT_EQ(effects_of(schedule, in).reads, in.reads);
    EXPECT_EQ(effects_of(schedule, in).writes, in.writes);
  }
  EXPECT_EQ(blocks.size(), 6 * 28 + 1);
  for (const auto& [op, count] : blocks) EXPECT_LE(count, 132) << name_of(op.first);
  EXPECT_EQ((rows[{Opcode::norm_qkv_rope_append, 27}]), (16 + 2 * 8) * 128);
  EXPECT_EQ((rows[{Opcode::norm_head, -1}]), 151936);
}

// Of a processor, which does not count what else the machine does.
double seconds_of(const Schedule& schedule, ScheduleCheck& checked) {
  const std::clock_t begin = std::clock();
  checked = check_schedule(schedule);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST(MadeSchedule, OfALargeModelIsCheckedQuickly) {
  ScheduleCheck checked;
  const double small = seconds_of(make_schedule(qwen3_600m(), {.queues = 132}), checked);
  EXPECT_TRUE(checked.findings.empty());
  EXPECT_LT(small, 1);
  const double large = seconds_of(
      make_schedule(qwen3_8b(), {.queues = 132, .kv_shares = 4, .down_shares = 4}), checked);
  EXPECT_TRUE(checked.findings.empty());
  EXPECT_LT(large, 2);
  fmt::print("0.6B in {:.3f} s, 8B in {:.3f} s\n", small, large);
}

// Nothing is in order, which must neither take for ever nor fill the memory.
TEST(MadeSchedule, WithoutWaitsIsRefutedInBoundedTimeAndSpace) {
  Schedule schedule = make_schedule(qwen3_600m(), {.queues = 132});
  for (Instruction& in : schedule.instructions) in.waits.clear();
  ScheduleCheck checked;
  const double seconds = seconds_of(schedule, checked);
  EXPECT_LT(seconds, 20);
  EXPECT_GT(count_of(checked, ScheduleCheck::Fault::early_read), 0);
  EXPECT_GT(count_of(checked, ScheduleCheck::Fault::overwritten), 0);
  EXPECT_GT(checked.not_kept, 0);
  for (const ScheduleCheck::Fault fault : values_of<ScheduleCheck::Fault>())
    EXPECT_LE(count_of(checked, fault), 200);
  const Machine machine(schedule);
  for (const size_t i : {size_t{0}, checked.findings.size() / 2, checked.findings.size() - 1})
    EXPECT_EQ(not_shown(machine, checked, checked.findings[i]), "");
  fmt::print("without waits: {} findings of {} in {:.3f} s\n", checked.findings.size(),
             checked.findings.size() + static_cast<size_t>(checked.not_kept), seconds);
}

// What is made can be read: nobody waits for the memory of a list that is refused then.
TEST(MadeSchedule, HasNoMoreQueuesAndSharesThanAreRead) {
  const ScheduledModel model = two_layers();
  EXPECT_EQ(make_schedule(model, {.queues = kMostQueues}).queues, kMostQueues);
  for (const ScheduleOptions& options : {ScheduleOptions{.queues = kMostQueues + 1},
                                         {.kv_shares = int64_t{kMostShares} + 1},
                                         {.kv_shares = 99'999'999'999}})
    try {
      make_schedule(model, options);
      ADD_FAILURE() << options.queues << " queues, " << options.kv_shares << " shares";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("at most 65536 queues and 65536 shares"),
                std::string::npos)
          << error.what();
    }
}

}  // namespace
}  // namespace lockstep
