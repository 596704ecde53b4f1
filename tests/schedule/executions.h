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

// All interleavings, each state that two of them share looked at once.
class Exploration {
 public:
  explicit Exploration(const Machine& machine) : machine_(machine) { visit(machine.start()); }
  const Truth& truth() const { return truth_; }

 private:
  void visit(Machine::State state) {
    truth_.wrongs.merge(state.wrongs);
    state.wrongs.clear();
    if (!seen_.insert(key_of(state)).second) return;
    ++truth_.states;
    const std::vector<int> places = machine_.ready(state);
    if (places.empty()) truth_.add(state);
    for (const int place : places) {
      Machine::State after = state;
      machine_.run(after, place);
      visit(std::move(after));
    }
  }
  // Counters and how often each was written follow from what has run.
  static std::string key_of(const Machine::State& state) {
    std::string key;
    const auto add = [&](int64_t number) { key += static_cast<char>(number + 1); };
    for (const int head : state.heads) add(head);
    for (const Machine::Cell& cell : state.cells) {
      add(cell.tensor);
      add(cell.top);
      add(cell.count);
      add(static_cast<int64_t>(cell.added));
    }
    return key;
  }

  const Machine& machine_;
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
