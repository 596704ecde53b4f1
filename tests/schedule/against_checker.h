// What the checker says of a schedule, held to what the machine did with it.
#pragma once

#include <string>

#include "src/schedule/checker.h"
#include "tests/schedule/executions.h"

namespace lockstep {

inline bool is_of_order(ScheduleCheck::Fault fault) {
  return fault == ScheduleCheck::Fault::early_read || fault == ScheduleCheck::Fault::overwritten ||
         fault == ScheduleCheck::Fault::unordered;
}
inline bool is_of_standing(ScheduleCheck::Fault fault) {
  return fault == ScheduleCheck::Fault::deadlock || fault == ScheduleCheck::Fault::unreachable;
}
inline int64_t count_of(const ScheduleCheck& checked, ScheduleCheck::Fault fault) {
  return std::ranges::count(checked.findings, fault, &ScheduleCheck::Finding::fault);
}
// Whether the span has that number, or one that lies in its place.
inline bool covers(const Schedule& schedule, const std::optional<Span>& span, const Wrong& wrong) {
  return span && wrong.number >= span->begin && wrong.number < span->end &&
         schedule.tensors[span->tensor].memory == schedule.tensors[wrong.tensor].memory;
}
// Whether as many write each of those numbers as may, and the tensor has them.
inline bool is_written_right(const ScheduleCheck& checked, const Span& span) {
  return std::ranges::none_of(checked.findings, [&](const ScheduleCheck::Finding& other) {
    return (other.fault == ScheduleCheck::Fault::repeated ||
            other.fault == ScheduleCheck::Fault::outside) &&
           other.span->tensor == span.tensor && other.span->begin < span.end &&
           span.begin < other.span->end;
  });
}

// Executes what a finding of an order says; "" where the machine shows it.
inline std::string not_shown(const Machine& machine, const ScheduleCheck& checked,
                             const ScheduleCheck::Finding& finding) {
  const auto complaint = [&](const std::string& text) {
    return fmt::format("{}: {}: {}", name_of(finding.fault), finding.says, text);
  };
  if (finding.order.empty() || finding.order.back() != finding.second)
    return complaint("the order does not end with the second one");
  if (std::ranges::count(finding.order, finding.first) > 0)
    return complaint("the first one is in the order");
  Machine::State state = machine.start();
  try {
    for (const int place : finding.order) machine.run(state, place);
  } catch (const Error& error) {
    return complaint(error.what());
  }
  const bool is_early = finding.fault == ScheduleCheck::Fault::early_read;
  if (!is_early) run_all(machine, state, -1);
  const int victim = is_early ? finding.second : finding.first;
  for (const Wrong& wrong : state.wrongs)
    if (wrong.instruction == victim && wrong.kind != Wrong::outside &&
        covers(machine.schedule(), finding.span, wrong))
      return "";
  // Where a number is written twice, or outside, that is the fault, and what is read is open.
  if (!is_written_right(checked, *finding.span)) return "";
  return complaint("no fault on the machine");
}

// Executes what a finding says that all runs come to; "" where nothing can follow it.
inline std::string not_standing(const Machine& machine, const ScheduleCheck::Finding& finding) {
  Machine::State state = machine.start();
  try {
    for (const int place : finding.order) machine.run(state, place);
  } catch (const Error& error) {
    return fmt::format("{}: {}", finding.says, error.what());
  }
  const bool is_head =
      machine.next(state, machine.schedule().instructions[finding.second].queue) == finding.second;
  return machine.ready(state).empty() && is_head ? "" : finding.says + ": it does not end there so";
}

// The numbers that are written too rarely, or too often, by counting, and those of the findings.
using Numbers = std::set<std::pair<int, int64_t>>;
inline Numbers miscounted(const Schedule& schedule, bool too_often) {
  std::map<std::pair<int, int64_t>, std::multiset<int64_t>> shares;
  int64_t other = -1;  // shares of which the list does not say which they are
  for (const Instruction& in : schedule.instructions)
    for (const Span& span : in.writes)
      for (int64_t number = span.begin; number < span.end; ++number)
        shares[{span.tensor, number}].insert(in.opcode == Opcode::down_residual ? in.share
                                                                                : --other);
  Numbers numbers;
  for (size_t t = 0; t < schedule.tensors.size(); ++t) {
    const ScheduledTensor& tensor = schedule.tensors[t];
    const size_t due = tensor.given ? 0 : std::max<size_t>(static_cast<size_t>(tensor.shares), 1);
    for (int64_t number = 0; number < tensor.width; ++number) {
      const std::multiset<int64_t>& has = shares[{static_cast<int>(t), number}];
      const bool is_twice = std::ranges::adjacent_find(has) != has.end();
      if (too_often ? has.size() > due || (has.size() == due && is_twice) : has.size() < due)
        numbers.insert({static_cast<int>(t), number});
    }
  }
  return numbers;
}
inline Numbers found(const ScheduleCheck& checked, ScheduleCheck::Fault fault) {
  Numbers numbers;
  for (const ScheduleCheck::Finding& finding : checked.findings)
    if (finding.fault == fault)
      for (int64_t i = finding.span->begin; i < finding.span->end; ++i)
        numbers.insert({finding.span->tensor, i});
  return numbers;
}

// Every wrong that the machine met must be the object of a finding: of the same number, or an order
// with that instruction.
inline std::string not_found(const Schedule& schedule, const ScheduleCheck& checked,
                             const Wrong& wrong) {
  for (const ScheduleCheck::Finding& finding : checked.findings) {
    const ScheduleCheck::Fault fault = finding.fault;
    const bool is_here = covers(schedule, finding.span, wrong);
    if (is_here &&
        (fault == ScheduleCheck::Fault::missing || fault == ScheduleCheck::Fault::repeated ||
         fault == ScheduleCheck::Fault::outside))
      return "";
    if (is_of_order(fault) &&
        (finding.first == wrong.instruction || finding.second == wrong.instruction))
      return "";
    if (fault == ScheduleCheck::Fault::unordered && is_here) return "";
    if (is_of_standing(fault)) return "";
  }
  return fmt::format("kind {} of instruction {} at {} of tensor {} was not found",
                     static_cast<int>(wrong.kind), wrong.instruction, wrong.number, wrong.tensor);
}

// What the checker says otherwise than the truth is; "" where they agree.
inline std::string disagreement(const Machine& machine, const ScheduleCheck& checked,
                                const Truth& truth) {
  if (truth.is_right() != checked.findings.empty())
    return checked.findings.empty() ? "the checker found nothing"
                                    : "the checker found " + checked.findings.front().says;
  if (truth.stands_still !=
      std::ranges::any_of(checked.findings, is_of_standing, &ScheduleCheck::Finding::fault))
    return truth.stands_still ? "no finding says that it stands still" : "it does not stand still";
  for (const Wrong& wrong : truth.wrongs)
    if (const std::string text = not_found(machine.schedule(), checked, wrong); !text.empty())
      return text;
  for (const ScheduleCheck::Finding& finding : checked.findings) {
    std::string text;
    if (is_of_order(finding.fault)) text = not_shown(machine, checked, finding);
    if (is_of_standing(finding.fault)) text = not_standing(machine, finding);
    if (!text.empty()) return text;
  }
  if (checked.not_kept > 0) return "";
  const Schedule& schedule = machine.schedule();
  if (found(checked, ScheduleCheck::Fault::missing) != miscounted(schedule, false))
    return "other numbers are missing";
  if (found(checked, ScheduleCheck::Fault::repeated) != miscounted(schedule, true))
    return "other numbers are repeated";
  return "";
}

}  // namespace lockstep
