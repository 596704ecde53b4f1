// Schedules that are right but for one edit: the checker finds what any execution tried shows, and
// says nothing of an order where none shows it.
#include <gtest/gtest.h>

#include <cstdlib>

#include "src/schedule/schedule_json.h"
#include "tests/schedule/against_checker.h"
#include "tests/schedule/edits.h"

namespace lockstep {
namespace {

int64_t schedules() {
  const char* wanted = std::getenv("LOCKSTEP_BROKEN_SCHEDULES");
  return wanted != nullptr ? std::atoll(wanted) : 10000;
}

// Counters never fall: two instructions can run in either order if, and only if, one of them runs
// while the other is held back for as long as anything else can. So each is held back once, and
// some executions by chance may show what this reasoning has not seen.
Truth truth_of(const Machine& machine, std::mt19937_64& random) {
  Truth truth;
  for (size_t i = 0; i < machine.schedule().instructions.size(); ++i)
    truth.add(late_execution(machine, static_cast<int>(i)));
  for (int i = 0; i < 4; ++i) truth.add(random_execution(machine, random));
  return truth;
}

// Findings that need no execution: what the list says is not what its opcodes are for.
bool is_of_meaning(const ScheduleCheck::Finding& finding) {
  return finding.fault == ScheduleCheck::Fault::other_rows ||
         finding.fault == ScheduleCheck::Fault::split_head;
}

Schedule some_schedule(std::mt19937_64& random) {
  const ScheduledModel model = some_model(random, 2, 40);
  return make_schedule(model, {.queues = static_cast<int>(between(random, 1, 5)),
                               .kv_shares = between(random, 1, 2),
                               .down_shares = between(random, 1, 2)});
}

TEST(BrokenSchedule, IsFoundWhereAnExecutionShowsIt) {
  ScheduleEdits edits(5);
  int64_t failures = 0;
  std::map<std::string, std::pair<int64_t, int64_t>> counts;  // by edit: made, and shown
  for (int64_t i = 0; i < schedules() && failures < 5;) {
    const Schedule right = some_schedule(edits.random());
    for (int edit = 0; edit < 10; ++edit) {
      Schedule schedule = right;
      std::string said = edits.edit(schedule);
      if (said.empty()) continue;
      if (edits.random()() % 4 == 0 && !edits.edit(schedule).empty()) said += ", and another";
      ++i;
      const Machine machine(schedule);
      const Truth truth = truth_of(machine, edits.random());
      ScheduleCheck checked = check_schedule(schedule);
      std::erase_if(checked.findings, is_of_meaning);
      const std::string text = disagreement(machine, checked, truth);
      if (!text.empty()) {
        ++failures;
        ADD_FAILURE() << said << ": " << text << "\n" << schedule_json(schedule);
      }
      ++counts[said].first;
      counts[said].second += !truth.is_right();
    }
  }
  for (const auto& [said, count] : counts) {
    if (said.ends_with("another")) continue;
    fmt::print("{}: {} of {} are shown\n", said, count.second, count.first);
    EXPECT_GT(count.first, schedules() / 1000) << said;
  }
  EXPECT_GE(counts.size(), 40);
}

}  // namespace
}  // namespace lockstep
