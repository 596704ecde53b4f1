// Small schedules, of which all executions are tried: the checker finds a fault where one of them
// shows one, and nowhere else.
#include <gtest/gtest.h>

#include <cstdlib>

#include "src/schedule/schedule_json.h"
#include "tests/schedule/against_checker.h"
#include "tests/schedule/tiny_schedules.h"

namespace lockstep {
namespace {

// As many as a CTest run has time for, or LOCKSTEP_TINY_SCHEDULES of the environment.
int64_t schedules() {
  const char* wanted = std::getenv("LOCKSTEP_TINY_SCHEDULES");
  return wanted != nullptr ? std::atoll(wanted) : 10000;
}

TEST(ScheduleExploration, CheckerFindsWhatSomeExecutionShows) {
  EnumArray<ScheduleCheck::Fault, int64_t> by_fault;
  int64_t right = 0, still = 0, states = 0, failures = 0;
  TinySchedules tiny(1);
  for (int64_t i = 0; i < schedules() && failures < 5; ++i) {
    const Schedule schedule = tiny.made();
    const Machine machine(schedule);
    const Truth truth = Exploration(machine).truth();
    const ScheduleCheck checked = check_schedule(schedule);
    const std::string text = disagreement(machine, checked, truth);
    if (!text.empty()) {
      ++failures;
      ADD_FAILURE() << i << ": " << text << "\n" << schedule_json(schedule);
    }
    for (const ScheduleCheck::Finding& finding : checked.findings) ++by_fault[finding.fault];
    right += truth.is_right();
    still += truth.stands_still;
    states += static_cast<int64_t>(truth.states);
  }
  fmt::print("{} right, {} stand still, {} states\n", right, still, states);
  EXPECT_GT(right, schedules() / 5);
  EXPECT_GT(still, schedules() / 50);
  for (const ScheduleCheck::Fault fault :
       {ScheduleCheck::Fault::missing, ScheduleCheck::Fault::repeated,
        ScheduleCheck::Fault::outside, ScheduleCheck::Fault::unreachable,
        ScheduleCheck::Fault::deadlock, ScheduleCheck::Fault::early_read,
        ScheduleCheck::Fault::overwritten, ScheduleCheck::Fault::unordered}) {
    fmt::print("{} {}\n", name_of(fault), by_fault[fault]);
    EXPECT_GT(by_fault[fault], schedules() / 200) << name_of(fault);
  }
}

// An instruction that reads when it begins and writes when it ends shows no more than one that does
// both at once, so that orders of whole instructions are all there is to look at.
TEST(ScheduleExploration, HalvesOfInstructionsShowNoMore) {
  TinySchedules tiny(2);
  size_t states = 0, states_in_halves = 0;
  for (int i = 0; i < 1000; ++i) {
    const Schedule schedule = tiny.made();
    const Machine machine(schedule);
    const Truth truth = Exploration(machine).truth();
    const Truth in_halves = Exploration(machine, /*in_halves=*/true).truth();
    EXPECT_EQ(truth.stands_still, in_halves.stands_still) << i;
    EXPECT_EQ(truth.wrongs, in_halves.wrongs) << i;
    states += truth.states;
    states_in_halves += in_halves.states;
  }
  EXPECT_GT(states_in_halves, 2 * states);
}

}  // namespace
}  // namespace lockstep
