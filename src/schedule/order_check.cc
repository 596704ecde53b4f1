// All but one instruction run, for each of them in turn: nobody who must wait for it does. The
// method and why it is exact stand in checker.h.
#include "src/schedule/order_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "src/schedule/execution.h"

namespace lockstep {
namespace {

using Use = ScheduleUses::Use;

class OrderCheck {
 public:
  OrderCheck(const Schedule& schedule, const ScheduleUses& uses, FindingLog& findings,
             ScheduleCheck& checked)
      : schedule_(schedule),
        uses_(uses),
        findings_(findings),
        checked_(checked),
        lists_(lists_of(schedule)) {}

  // Lets all run. What is left over waits for what never comes.
  void check_runs() {
    Execution execution(schedule_, lists_);
    execution.run(-1, order_);
    if (order_.size() == schedule_.instructions.size()) return;
    std::vector<int64_t> raised(schedule_.counters.size());
    for (const Instruction& in : schedule_.instructions)
      for (const Instruction::CounterUse& raise : in.raises) raised[raise.counter] += raise.value;

    std::vector<int> stuck;
    bool unreachable = false;
    for (int queue = 0; queue < schedule_.queues; ++queue) {
      const int place = execution.next(queue);
      if (place < 0) continue;
      stuck.push_back(place);
      for (const Instruction::CounterUse& wait : at(place).waits) {
        // A wait that all raises together cannot end is a fault of its own: nobody else is to blame
        // for it. Only where there is none do the queues wait for each other.
        if (wait.value <= raised[wait.counter]) continue;
        unreachable = true;
        findings_.add(
            {ScheduleCheck::Fault::unreachable, -1, place, std::nullopt,
             fmt::format("{} waits until counter {} ({}) is {}, and all its raises make {}",
                         said_of(place), wait.counter, schedule_.counters[wait.counter], wait.value,
                         raised[wait.counter]),
             order_});
      }
    }
    if (!unreachable) add_deadlock(execution, stuck);
  }

  void add_deadlock(const Execution& execution, const std::vector<int>& stuck) {
    std::vector<std::string> waits;
    for (const int place : stuck) {
      const auto& all = at(place).waits;
      const auto wait = std::ranges::find_if(all, [&](const Instruction::CounterUse& w) {
        return execution.value(w.counter) < w.value;
      });
      if (waits.size() < 4)
        waits.push_back(fmt::format(
            "{} until counter {} ({}), which stands at {}, is {}", said_of(place), wait->counter,
            schedule_.counters[wait->counter], execution.value(wait->counter), wait->value));
    }
    const size_t left = schedule_.instructions.size() - order_.size();
    findings_.add(
        {ScheduleCheck::Fault::deadlock, -1, stuck.front(), std::nullopt,
         fmt::format("{} of {} instructions never run: {} queues wait for each other, {}{}", left,
                     schedule_.instructions.size(), stuck.size(), fmt::join(waits, "; "),
                     stuck.size() > waits.size() ? "; ..." : ""),
         order_});
  }

  // For each instruction, lets all others run as far as they do without it, and looks whether
  // someone ran who reads what it writes, or takes the memory that it uses. They begin where the
  // execution of all stood just before it: what had run by then can run before it.
  void check_orders() {
    Execution before(schedule_, lists_);
    std::vector<int> turn(schedule_.instructions.size(), -1);  // in order_
    for (int i = 0; i < std::ssize(order_); ++i) turn[order_[i]] = i;
    std::vector<int> also;                                      // that run without it
    std::vector<int> stamp(schedule_.instructions.size(), -1);  // the last one without which
    for (const int place : order_) {
      Execution without = before;
      also.clear();
      without.run(place, also);
      for (const int other : also) stamp[other] = place;
      const auto can_precede = [&](int other) {
        return stamp[other] == place || (turn[other] >= 0 && turn[other] < turn[place]);
      };
      check_after(place, can_precede, also, turn[place]);
      before.step(at(place).queue);
    }
    // Who comes too early lets others come too early: the first of them is said first.
    std::ranges::stable_sort(checked_.findings, {}, [&](const ScheduleCheck::Finding& f) {
      const bool is_order = f.first >= 0 && f.fault != ScheduleCheck::Fault::repeated;
      return std::tuple(is_order, is_order ? turn[f.second] : -1, f.first);
    });
  }

  // Each pair is looked at from the side of the one that must come first: a writer for its readers,
  // a reader or writer for those that write next to the same memory.
  void check_after(int place, const auto& can_precede, const std::vector<int>& also, int turn) {
    const auto hold = [&](ScheduleCheck::Fault fault, int tensor, const Use& mine,
                          const std::vector<Use>& others) {
      for (const Use& other : others) {
        if (other.place == place || !mine.overlaps(other)) continue;
        if (!can_precede(other.place)) {
          ++checked_.ordered_pairs;
          continue;
        }
        const Span span = {tensor, std::max(mine.begin, other.begin),
                           std::min(mine.end, other.end)};
        add_order(fault, place, other.place, span, also, turn);
      }
    };
    for (const Span& span : at(place).writes) {
      const Use mine = {span.begin, span.end, place};
      for (const Span& read : at(place).reads)
        if (read.tensor == span.tensor && mine.overlaps({read.begin, read.end, place}))
          add_own(place,
                  {span.tensor, std::max(span.begin, read.begin), std::min(span.end, read.end)},
                  turn);
      hold(ScheduleCheck::Fault::early_read, span.tensor, mine, uses_.readers(span.tensor));
      uses_.for_next(span, [&](int next, int64_t begin, int64_t end) {
        hold(ScheduleCheck::Fault::unordered, span.tensor, {begin, end, place},
             uses_.writers(next));
      });
    }
    for (const Span& span : at(place).reads)
      uses_.for_next(span, [&](int next, int64_t begin, int64_t end) {
        hold(ScheduleCheck::Fault::overwritten, span.tensor, {begin, end, place},
             uses_.writers(next));
      });
  }

  void add_own(int place, const Span& span, int turn) {
    if (!findings_.is_kept(ScheduleCheck::Fault::early_read)) return;
    findings_.add({ScheduleCheck::Fault::early_read,
                   -1,
                   place,
                   span,
                   fmt::format("{} reads {}, which it writes itself: it reads before it writes",
                               said_of(place), numbers_of(schedule_, span)),
                   {order_.begin(), order_.begin() + turn + 1}});
  }

  void add_order(ScheduleCheck::Fault fault, int first, int second, const Span& span,
                 const std::vector<int>& also, int turn) {
    if (!findings_.is_kept(fault)) return;
    const std::string numbers = numbers_of(schedule_, span);
    const std::string& memory = schedule_.tensors[span.tensor].memory;
    std::string says;
    if (fault == ScheduleCheck::Fault::early_read)
      says = fmt::format("{} can read {} before {} has written them", said_of(second), numbers,
                         said_of(first));
    else if (fault == ScheduleCheck::Fault::overwritten)
      says = fmt::format("{} can write to {} over {} before {} has read them", said_of(second),
                         memory, numbers, said_of(first));
    else
      says = fmt::format("{} can write to {} before {} writes {} there, which are left over them",
                         said_of(second), memory, said_of(first), numbers);
    ScheduleCheck::Finding finding{fault, first, second, span, std::move(says)};
    // The witness is the execution up to this instruction, then what can run without it, cut behind
    // the one that comes too early.
    finding.order.assign(order_.begin(), order_.begin() + turn);
    const auto has = std::ranges::find(finding.order, second);
    if (has != finding.order.end()) {
      finding.order.erase(has + 1, finding.order.end());
    } else {
      finding.order.insert(finding.order.end(), also.begin(), std::ranges::find(also, second) + 1);
    }
    findings_.add(std::move(finding));
  }

 private:
  const Instruction& at(int place) const { return schedule_.instructions[place]; }
  std::string said_of(int place) const { return said(at(place)); }

  const Schedule& schedule_;
  const ScheduleUses& uses_;
  FindingLog& findings_;
  ScheduleCheck& checked_;
  std::vector<std::vector<int>> lists_;
  std::vector<int> order_;  // of an execution of all
};

}  // namespace

void check_order(const Schedule& schedule, const ScheduleUses& uses, FindingLog& findings,
                 ScheduleCheck& checked) {
  OrderCheck check(schedule, uses, findings, checked);
  check.check_runs();
  check.check_orders();
}

}  // namespace lockstep
