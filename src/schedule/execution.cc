// Instructions of one queue run in their order; which queue goes next is free, but for the
// counters. As these never fall, an instruction that can run stays so until it has.
#include "src/schedule/execution.h"

#include <algorithm>

namespace lockstep {

std::vector<std::vector<int>> lists_of(const Schedule& schedule) {
  std::vector<std::vector<int>> lists(schedule.queues);
  for (int i = 0; i < std::ssize(schedule.instructions); ++i)
    lists[schedule.instructions[i].queue].push_back(i);
  return lists;
}

Execution::Execution(const Schedule& schedule, const std::vector<std::vector<int>>& lists)
    : schedule_(&schedule),
      lists_(&lists),
      heads_(lists.size()),
      values_(schedule.counters.size()) {}

int Execution::next(int queue) const {
  const std::vector<int>& list = (*lists_)[queue];
  return heads_[queue] < list.size() ? list[heads_[queue]] : -1;
}

bool Execution::can_run(int place) const {
  return std::ranges::all_of(
      schedule_->instructions[place].waits,
      [this](const Instruction::CounterUse& wait) { return values_[wait.counter] >= wait.value; });
}

void Execution::step(int queue) {
  for (const Instruction::CounterUse& raise : schedule_->instructions[next(queue)].raises)
    values_[raise.counter] += raise.value;
  ++heads_[queue];
}

void Execution::run(int without, std::vector<int>& order) {
  for (bool some = true; some;) {
    some = false;
    for (int queue = 0; queue < std::ssize(*lists_); ++queue) {
      for (int place = next(queue); place >= 0 && place != without && can_run(place);
           place = next(queue)) {
        step(queue);
        order.push_back(place);
        some = true;
      }
    }
  }
}

}  // namespace lockstep
