// Runs the instructions of one step, in two ways: a thread for each queue, which waits for the
// counters as a multiprocessor does; or all of them one after another, in an order that the
// counters allow, so that an order which a schedule should have ruled out is met on purpose.
#include "src/instructions/step_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>

#include "kernels/base/check.h"
#include "src/schedule/execution.h"

namespace lockstep {
namespace {

// The counters of a step whose queues are threads. One lock guards them: an instruction computes
// for so long that nobody waits for it.
class Counters {
 public:
  explicit Counters(const Schedule& schedule) : values_(schedule.counters.size()) {}

  // Returns false when another thread failed: then what is waited for may never come.
  bool wait(const Instruction& in) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return failure_ || std::ranges::all_of(in.waits, [&](const Instruction::CounterUse& wait) {
               return values_[wait.counter] >= wait.value;
             });
    });
    return !failure_;
  }

  void raise(const Instruction& in) {
    if (in.raises.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      for (const Instruction::CounterUse& raise : in.raises) values_[raise.counter] += raise.value;
    }
    changed_.notify_all();
  }

  void fail_with(std::exception_ptr failure) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::move(failure);
    }
    changed_.notify_all();
  }

  const std::exception_ptr& failure() const { return failure_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> values_;
  std::exception_ptr failure_;
};

// The clock that all threads share, which never goes back.
int64_t clock_now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// An entry for each instruction; each is its queue's to fill.
std::vector<TimedWork> untimed(const Schedule& schedule) {
  std::vector<TimedWork> times;
  for (const Instruction& in : schedule.instructions)
    times.push_back({.queue = in.queue, .name = in.name, .layer = in.layer, .number = in.id});
  return times;
}

void run_queue(const Schedule& schedule, const std::vector<int>& list, Counters& counters,
               const std::function<void(const Instruction&)>& compute,
               std::vector<TimedWork>& times) {
  try {
    for (const int place : list) {
      const Instruction& in = schedule.instructions[place];
      TimedWork& time = times[place];
      time.begin = clock_now();
      if (!counters.wait(in)) return;
      time.waited = clock_now();
      compute(in);
      time.end = clock_now();
      counters.raise(in);
    }
  } catch (...) {
    counters.fail_with(std::current_exception());
  }
}

std::vector<TimedWork> run_threads(const Schedule& schedule,
                                   const std::vector<std::vector<int>>& lists,
                                   const std::function<void(const Instruction&)>& compute) {
  std::vector<TimedWork> times = untimed(schedule);
  Counters counters(schedule);
  {
    std::vector<std::jthread> threads;
    try {
      for (const std::vector<int>& list : lists)
        threads.emplace_back([&schedule, &list, &counters, &compute, &times] {
          run_queue(schedule, list, counters, compute, times);
        });
    } catch (const std::system_error& error) {
      // Those that run wait for the others.
      counters.fail_with(std::make_exception_ptr(Error(
          fmt::format("the system gave only {} threads of {}, one for each queue ({}): make a "
                      "schedule of fewer queues",
                      threads.size(), lists.size(), error.what()))));
    }
  }
  if (counters.failure()) std::rethrow_exception(counters.failure());
  return times;
}

}  // namespace

std::vector<TimedWork> run_step(const Schedule& schedule, const Interleaving& interleaving,
                                const std::function<void(const Instruction&)>& compute) {
  const std::vector<std::vector<int>> lists = lists_of(schedule);
  if (!interleaving.seed && interleaving.begin.empty())
    return run_threads(schedule, lists, compute);

  Execution execution(schedule, lists);
  std::vector<TimedWork> times = untimed(schedule);
  const auto run = [&](int queue) {
    const int place = execution.next(queue);
    times[place].begin = times[place].waited = clock_now();
    compute(schedule.instructions[place]);
    times[place].end = clock_now();
    execution.step(queue);
  };
  for (const int place : interleaving.begin) run(schedule.instructions[place].queue);
  std::mt19937_64 random(interleaving.seed.value_or(0));
  std::vector<int> ready;
  for (size_t left = schedule.instructions.size() - interleaving.begin.size(); left > 0; --left) {
    ready.clear();
    for (int queue = 0; queue < schedule.queues; ++queue)
      if (execution.next(queue) >= 0 && execution.can_run(execution.next(queue)))
        ready.push_back(queue);
    check(!ready.empty(),
          "{} instructions of the schedule wait for ever: `lockstep schedule FILE "
          "--check` says for what",
          left);
    run(ready[random() % ready.size()]);
  }
  return times;
}

}  // namespace lockstep
