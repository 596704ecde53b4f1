// Executions of a schedule on the machine: all there are, some by chance, and those in which one
// instruction comes as late as it can.
#pragma once

#include <random>
#include <string>
#include <unordered_set>

#include "tests/schedule/machine.h"

namespace lockstep {

// What can happen to a schedule.
struct Truth {
  bool stands_still = false;
  std::set<Wrong> wrongs;
  size_t states = 0;

  bool is_right() const { return !stands_still && wrongs.empty(); }
  bool has(Wrong::Kind kind) const {
    return std::ranges::any_of(wrongs, [&](const Wrong& wrong) { return wrong.kind == kind; });
  }
  void add(const Machine::State& end) {
    stands_still = stands_still || end.left > 0;
    wrongs.insert(end.wrongs.begin(), end.wrongs.end());
  }
};

// All interleavings, each state that two of them share looked at once. Instructions run at one go,
// or `in_halves`, between which others do what they can.
class Exploration {
 public:
  explicit Exploration(const Machine& machine, bool in_halves = false)
      : machine_(machine), in_halves_(in_halves) {
    visit(machine.start(), {});
  }
  const Truth& truth() const { return truth_; }

 private:
  // `begun`: places of those that have read, and not yet written.
  void visit(Machine::State state, const std::set<int>& begun) {
    truth_.wrongs.merge(state.wrongs);
    state.wrongs.clear();
    if (!seen_.insert(key_of(state, begun)).second) return;
    ++truth_.states;
    const std::vector<int> places = machine_.ready(state);
    if (places.empty()) truth_.add(state);
    for (const int place : places) {
      Machine::State after = state;
      std::set<int> begun_after = begun;
      if (in_halves_ && begun_after.erase(place) == 0) {
        machine_.begin(after, place);
        begun_after.insert(place);
      } else if (in_halves_) {
        machine_.end(after, place);
      } else {
        machine_.run(after, place);
      }
      visit(std::move(after), begun_after);
    }
  }
  // Counters and how often each was written follow from what has run.
  static std::string key_of(const Machine::State& state, const std::set<int>& begun) {
    std::string key;
    const auto add = [&](int64_t number) { key += static_cast<char>(number + 1); };
    for (const int head : state.heads) add(head);
    for (const Machine::Cell& cell : state.cells) {
      add(cell.tensor);
      add(cell.top);
      add(cell.count);
      add(static_cast<int64_t>(cell.added));
    }
    for (const int place : begun) add(place);
    return key;
  }

  const Machine& machine_;
  bool in_halves_;
  std::unordered_set<std::string> seen_;
  Truth truth_;
};

// Runs what can run, one by chance after another.
inline Machine::State random_execution(const Machine& machine, std::mt19937_64& random) {
  Machine::State state = machine.start();
  for (;;) {
    const std::vector<int> ready = machine.ready(state);
    if (ready.empty()) return state;
    machine.run(state, ready[random() % ready.size()]);
  }
}

// Runs all that can run, one queue after the other, but not `without` (-1: no exception).
inline void run_all(const Machine& machine, Machine::State& state, int without) {
  for (bool moved = true; moved;) {
    moved = false;
    for (int queue = 0; queue < machine.schedule().queues; ++queue)
      for (int place = machine.next(state, queue);
           place >= 0 && place != without && machine.can_run(state, place);
           place = machine.next(state, queue)) {
        machine.run(state, place);
        moved = true;
      }
  }
}

// An execution in which an instruction comes when nothing else can run.
inline Machine::State late_execution(const Machine& machine, int late) {
  Machine::State state = machine.start();
  run_all(machine, state, late);
  run_all(machine, state, -1);
  return state;
}

}  // namespace lockstep
