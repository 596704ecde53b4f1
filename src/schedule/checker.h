// The check of a schedule, without running a model: whether each number is computed once, whether
// the queues can stand still for ever, and whether the counters alone keep every read behind its
// write. Exact for the schedule given: a finding of an order is an execution that the counters
// allow, and where there is none no execution differs from another.
//
// Source of the method: counters never fall, so what can run only grows as others run. Let all run
// but one instruction: what then runs can come before it, what does not cannot, in any execution.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/names.h"
#include "src/schedule/schedule.h"

namespace lockstep {

struct ScheduleCheck {
  enum class Fault : uint8_t {
    missing,      // nobody writes a number
    repeated,     // a number is written twice, or a sum gets a share twice or too many
    outside,      // a number that the tensor does not have
    other_rows,   // an instruction reads or writes other than its opcode and rows say
    split_head,   // a norm or RoPE over a head, of which an instruction holds a part
    unreachable,  // a wait for more than all raises of its counter
    deadlock,     // waits for each other
    early_read,   // a read that may come before its write; first -1: before its own
    overwritten,  // a write that may come before the last read of what lay there
    unordered,    // two writes to one place of which either may be the last
  };

  struct Finding {
    Fault fault = Fault::missing;
    // Places in Schedule::instructions: `second` is the one that comes too early. -1: there is
    // none.
    int first = -1, second = -1;
    std::optional<Span> span;  // the numbers it is about
    std::string says;          // a sentence
    // An execution that shows it: the instructions in the order in which they end, up to the second
    // one, the first not among them. Of a deadlock: all that run.
    std::vector<int> order = {};
  };

  std::vector<Finding> findings;
  int64_t not_kept = 0;  // findings beyond the first 200 of a kind
  int64_t instructions = 0;
  int64_t numbers = 0;        // of tensors that were held to be written
  int64_t ordered_pairs = 0;  // of instructions that use one place and are kept in order
};
template <>
inline constexpr auto kNamesOf<ScheduleCheck::Fault> = std::to_array<const char*>(
    {"missing", "repeated", "outside", "other rows", "split head", "unreachable", "deadlock",
     "early read", "overwritten", "unordered"});

// It lets the schedule run once for each instruction, so that its time may grow with the square of
// their number. Findings come in a fixed order.
ScheduleCheck check_schedule(const Schedule& schedule);

// 0: no finding, 1: findings. A schedule without an instruction is refused when it is read.
int exit_status(const ScheduleCheck& checked);

}  // namespace lockstep
