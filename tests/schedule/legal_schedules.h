// Schedules of decode steps by chance that are right, of which a hand or a compiler might write
// any: the blocks of an op are cut and joined, the counters are those of whole ops or of single
// instructions, and the queues are dealt instructions anyhow.
#pragma once

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "src/schedule/checker.h"
#include "tests/schedule/edits.h"

namespace lockstep {

// Whether two instructions hold a part each of a head of q, k or v.
inline bool splits_head(const Schedule& schedule) {
  return std::ranges::any_of(schedule.instructions, [&](const Instruction& in) {
    const int64_t dim = schedule.model.head_dim;
    return in.opcode == Opcode::norm_qkv_rope_append && (in.begin % dim != 0 || in.end % dim != 0);
  });
}

class LegalSchedules {
 public:
  explicit LegalSchedules(uint64_t seed) : edits_(seed) {}

  // With at most so many shares of the pages, and one sum of mlp.down, as the interpreter wants it.
  Schedule made(const ScheduledModel& model, int64_t most_shares) {
    made_ = make_schedule(model, {.queues = static_cast<int>(between(random(), 1, 6)),
                                  .kv_shares = between(random(), 1, most_shares)});
    for (int64_t i = between(random(), 0, 12); i > 0; --i)
      chance(60) ? cut(some()) : join(some(), some());
    wait_for_all();
    if (chance(30)) count_each();
    deal();
    return std::move(made_);
  }

  // The same with an edit or two that leave it right, as the checker says, and its heads whole, as
  // the interpreter wants them of v too; where none of those tried does, without one.
  Schedule edited(const ScheduledModel& model, int64_t most_shares) {
    const Schedule right = made(model, most_shares);
    for (int i = 0; i < 4; ++i) {
      Schedule schedule = right;
      for (int64_t edits = between(random(), 1, 2); edits > 0; --edits) edits_.edit(schedule);
      if (splits_head(schedule) || !check_schedule(schedule).findings.empty()) continue;
      ++edited_;
      return schedule;
    }
    return right;
  }
  int64_t edited() const { return edited_; }  // how many have an edit

  std::mt19937_64& random() { return edits_.random(); }

 private:
  bool chance(int64_t percent) { return between(random(), 1, 100) <= percent; }
  size_t some() { return random()() % made_.instructions.size(); }

  // One instruction's rows, or its KV heads, become two's. No head is split, and no router.
  void cut(size_t place) {
    Instruction& in = made_.instructions[place];
    if (in.opcode == Opcode::norm_route) return;  // a choice is among all experts
    const int64_t unit =
        in.opcode == Opcode::norm_qkv_rope_append ? made_.model.head_dim : int64_t{1};
    const int64_t units = (in.end - in.begin) / unit;
    if (units < 2) return;
    Instruction rest = in;
    in.end = rest.begin = in.begin + unit * between(random(), 1, units - 1);
    made_.instructions.push_back(std::move(rest));
  }

  // One instruction takes over what another of its op holds next to it, and waits for and raises
  // what both did.
  void join(size_t place, size_t other) {
    Instruction& in = made_.instructions[place];
    const Instruction& next = made_.instructions[other];
    if (in.opcode != next.opcode || in.layer != next.layer || in.share != next.share ||
        in.end != next.begin)
      return;
    in.end = next.end;
    in.waits.insert(in.waits.end(), next.waits.begin(), next.waits.end());
    in.raises.insert(in.raises.end(), next.raises.begin(), next.raises.end());
    made_.instructions.erase(made_.instructions.begin() + static_cast<std::ptrdiff_t>(other));
  }

  // Waits are for all who raise a counter, however many they have become.
  void wait_for_all() {
    std::vector<int64_t> raised(made_.counters.size());
    for (const Instruction& in : made_.instructions)
      for (const Instruction::CounterUse& raise : in.raises) raised[raise.counter] += raise.value;
    for (Instruction& in : made_.instructions)
      for (Instruction::CounterUse& wait : in.waits) wait.value = raised[wait.counter];
  }

  // Each instruction has a counter of its own, and those behind it wait for each of them.
  void count_each() {
    std::vector<std::vector<int>> raisers(made_.counters.size());
    std::vector<Instruction>& all = made_.instructions;
    for (size_t i = 0; i < all.size(); ++i)
      for (const Instruction::CounterUse& raise : all[i].raises)
        raisers[raise.counter].push_back(static_cast<int>(i));
    made_.counters.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      std::vector<Instruction::CounterUse> waits;
      for (const Instruction::CounterUse& wait : all[i].waits)
        for (const int raiser : raisers[wait.counter]) waits.push_back({raiser, 1});
      all[i].waits = std::move(waits);
      all[i].raises = {{static_cast<int>(i), 1}};
      made_.counters.push_back(fmt::format("{}", i));
    }
  }

  // Queues by chance, and in each of them the order of an execution by chance, so that no queue
  // ever stands still.
  void deal() {
    made_.queues = static_cast<int>(between(random(), 1, 8));
    std::vector<Instruction> left = std::move(made_.instructions);
    made_.instructions.clear();
    std::vector<int64_t> values(made_.counters.size());
    while (!left.empty()) {
      std::vector<size_t> ready;
      for (size_t i = 0; i < left.size(); ++i)
        if (std::ranges::all_of(left[i].waits, [&](const Instruction::CounterUse& wait) {
              return values[wait.counter] >= wait.value;
            }))
          ready.push_back(i);
      const size_t next = ready.at(random()() % ready.size());
      take(std::move(left[next]), values);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(next));
    }
  }

  void take(Instruction in, std::vector<int64_t>& values) {
    for (const Instruction::CounterUse& raise : in.raises) values[raise.counter] += raise.value;
    in.id = static_cast<int>(made_.instructions.size());
    in.queue = static_cast<int>(between(random(), 0, made_.queues - 1));
    Effects effects = effects_of(made_, in);
    in.reads = std::move(effects.reads);
    in.writes = std::move(effects.writes);
    made_.instructions.push_back(std::move(in));
  }

  ScheduleEdits edits_;
  Schedule made_;
  int64_t edited_ = 0;
};

}  // namespace lockstep
