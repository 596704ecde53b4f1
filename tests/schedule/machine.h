// A machine that executes a schedule with symbols for numbers: a place of a memory holds which
// number of which tensor it is, and which shares of it have been added. It is written from
// src/schedule/schedule.h alone, without a look at the checker, which it is held against.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "src/schedule/schedule.h"

namespace lockstep {

// What went wrong, where: an instruction found (or did) it at a number of a tensor.
struct Wrong {
  enum Kind {
    early,      // read before all who write it have done so
    destroyed,  // read when a later tensor lay there, or had done so
    backwards,  // written where a later tensor had been written
    again,      // written once more than it may be
    missing,    // not written when all had run
    outside,    // no number of the tensor
  };
  Kind kind = early;
  int instruction = -1;
  int tensor = 0;
  int64_t number = 0;
  auto operator<=>(const Wrong&) const = default;
};

class Machine {
 public:
  // What lies in a place.
  struct Cell {
    int tensor = -1;     // -1: nothing yet
    int top = -1;        // the last one in the list of those that have ever lain there
    int count = 0;       // times that it was written
    uint64_t added = 0;  // shares of down_residual, a bit each
    auto operator<=>(const Cell&) const = default;
  };
  struct State {
    std::vector<int> heads;  // by queue, how many have run
    std::vector<int64_t> counters;
    std::vector<Cell> cells;
    std::vector<int> written;  // by use, how often
    int left = 0;              // instructions that have not run
    std::set<Wrong> wrongs;
  };

  explicit Machine(const Schedule& schedule) : schedule_(schedule), queues_(schedule.queues) {
    for (size_t i = 0; i < schedule.instructions.size(); ++i)
      queues_.at(schedule.instructions[i].queue).push_back(static_cast<int>(i));
    cut();
    for (const Instruction& in : schedule.instructions) {
      reads_.push_back(uses_of(in.reads));
      writes_.push_back(uses_of(in.writes));
    }
    std::vector<int> writers(uses_.size());
    for (const std::vector<int>& uses : writes_)
      for (const int use : uses) ++writers[use];
    for (size_t use = 0; use < uses_.size(); ++use)
      uses_[use].due = std::max(times(uses_[use].tensor), writers[use]);
  }

  State start() const {
    State state;
    state.heads.assign(queues_.size(), 0);
    state.counters.assign(schedule_.counters.size(), 0);
    state.cells.resize(cells_);
    state.written.assign(uses_.size(), 0);
    state.left = static_cast<int>(schedule_.instructions.size());
    for (const Use& use : uses_)
      if (schedule_.tensors[use.tensor].given && !use.beyond)
        state.cells[use.cell] = {use.tensor, use.tensor, use.due, 0};
    for (size_t i = 0; i < schedule_.instructions.size(); ++i)
      for (const auto* spans :
           {&schedule_.instructions[i].reads, &schedule_.instructions[i].writes})
        for (const Span& span : *spans)
          if (span.begin < 0 || span.end > schedule_.tensors[span.tensor].width)
            state.wrongs.insert({Wrong::outside, static_cast<int>(i), span.tensor, span.end - 1});
    return state;
  }

  // The next of a queue, by its place in the list of all; -1: none is left.
  int next(const State& state, int queue) const {
    const std::vector<int>& list = queues_[queue];
    const int head = state.heads[queue];
    return head < std::ssize(list) ? list[head] : -1;
  }
  bool can_run(const State& state, int place) const {
    const Instruction& in = schedule_.instructions[place];
    return next(state, in.queue) == place &&
           std::ranges::all_of(in.waits, [&](const Instruction::CounterUse& wait) {
             return state.counters[wait.counter] >= wait.value;
           });
  }
  // The places of those that can run now.
  std::vector<int> ready(const State& state) const {
    std::vector<int> places;
    for (size_t queue = 0; queue < queues_.size(); ++queue)
      if (const int place = next(state, static_cast<int>(queue));
          place >= 0 && can_run(state, place))
        places.push_back(place);
    return places;
  }

  void run(State& state, int place) const {
    begin(state, place);
    end(state, place);
  }
  // The first half of a run: the waits are over, and it reads. Refuses what may not begin.
  void begin(State& state, int place) const {
    check(can_run(state, place), "the machine was told to run instruction {} too early", place);
    for (const int use : reads_[place]) read(state, place, use);
  }
  // The second half: it writes, raises and is gone from its queue.
  void end(State& state, int place) const {
    const Instruction& in = schedule_.instructions[place];
    for (const int use : writes_[place]) write(state, place, use);
    for (const Instruction::CounterUse& raise : in.raises)
      state.counters[raise.counter] += raise.value;
    ++state.heads[in.queue];
    if (--state.left == 0) finish(state);
  }

  const Schedule& schedule() const { return schedule_; }

 private:
  // A piece of a tensor that no span and no other tensor of its memory cuts: all of its numbers
  // have the same fate, so that one cell stands for them.
  struct Use {
    int tensor = 0, cell = 0;
    int64_t begin = 0;
    int due = 1;          // writes until it is what it becomes
    bool beyond = false;  // past the end of the tensor, where its memory goes on
  };

  void cut() {
    std::map<std::string, std::set<int64_t>> cuts;
    const auto cut_at = [&](const ScheduledTensor& tensor, int64_t number) {
      cuts[tensor.memory].insert(std::max<int64_t>(number, 0));
    };
    for (const ScheduledTensor& tensor : schedule_.tensors)
      for (const int64_t number : {int64_t{0}, tensor.width}) cut_at(tensor, number);
    for (const Instruction& in : schedule_.instructions)
      for (const auto* spans : {&in.reads, &in.writes})
        for (const Span& span : *spans)
          for (const int64_t number : {span.begin, span.end})
            cut_at(schedule_.tensors[span.tensor], number);
    std::map<std::string, int> first;  // cell of each memory
    for (const auto& [memory, numbers] : cuts) {
      first[memory] = cells_;
      cells_ += static_cast<int>(numbers.size());
    }
    for (size_t t = 0; t < schedule_.tensors.size(); ++t) {
      const ScheduledTensor& tensor = schedule_.tensors[t];
      from_.push_back(static_cast<int>(uses_.size()));
      int cell = first[tensor.memory];
      for (const int64_t number : cuts[tensor.memory])
        uses_.push_back({static_cast<int>(t), cell++, number, 1, number >= tensor.width});
    }
    from_.push_back(static_cast<int>(uses_.size()));
  }

  std::vector<int> uses_of(const std::vector<Span>& spans) const {
    std::vector<int> uses;
    for (const Span& span : spans)
      for (int use = from_[span.tensor]; use < from_[span.tensor + 1]; ++use)
        if (uses_[use].begin >= span.begin && uses_[use].begin < span.end) uses.push_back(use);
    std::ranges::sort(uses);  // what is written to one place is left there in the tensors' order
    return uses;
  }

  void read(State& state, int place, int use) const {
    const auto [tensor, cell, begin, due, beyond] = uses_[use];
    const Cell& at = state.cells[cell];
    if (beyond) return;
    if (at.top > tensor)
      state.wrongs.insert({Wrong::destroyed, place, tensor, begin});
    else if (at.tensor < tensor || at.count < due)
      state.wrongs.insert({Wrong::early, place, tensor, begin});
  }

  void write(State& state, int place, int use) const {
    const auto& [tensor, cell, begin, due, beyond] = uses_[use];
    Cell& at = state.cells[cell];
    if (at.top > tensor) state.wrongs.insert({Wrong::backwards, place, tensor, begin});
    if (at.tensor != tensor) at = {tensor, std::max(at.top, tensor), 0, 0};
    const Instruction& in = schedule_.instructions[place];
    const uint64_t share =
        in.opcode == Opcode::down_residual ? uint64_t{1} << in.share : uint64_t{0};
    if (++state.written[use] > (schedule_.tensors[tensor].given ? 0 : times(tensor)) ||
        (at.added & share) != 0)
      state.wrongs.insert({Wrong::again, place, tensor, begin});
    ++at.count;
    at.added |= share;
  }

  void finish(State& state) const {
    for (size_t use = 0; use < uses_.size(); ++use) {
      const auto& [tensor, cell, begin, due, beyond] = uses_[use];
      if (!beyond && !schedule_.tensors[tensor].given && state.written[use] < times(tensor))
        state.wrongs.insert({Wrong::missing, -1, tensor, begin});
    }
  }

  int times(int tensor) const {
    return static_cast<int>(std::max<int64_t>(schedule_.tensors[tensor].shares, 1));
  }

  const Schedule& schedule_;
  std::vector<std::vector<int>> queues_;
  std::vector<Use> uses_;                         // of a tensor one after another
  std::vector<int> from_;                         // by tensor, its first use
  std::vector<std::vector<int>> reads_, writes_;  // by instruction
  int cells_ = 0;
};

}  // namespace lockstep
