// Runs the instructions of one step, in two ways: a thread for each queue, which waits for the
// counters as a multiprocessor does; or all of them one after another, in an order that the
// counters allow, so that an order which a schedule should have ruled out is met on purpose.
#include "src/instructions/step_runner.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <random>
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

void run_queue(const Schedule& schedule, const std::vector<int>& list, Counters& counters,
               const std::function<void(const Instruction&)>& compute) {
  try {
    for (const int place : list) {
      const Instruction& in = schedule.instructions[place];
      if (!counters.wait(in)) return;
      compute(in);
      counters.raise(in);
    }
  } catch (...) {
    counters.fail_with(std::current_exception());
  }
}

void run_threads(const Schedule& schedule, const std::vector<std::vector<int>>& lists,
                 const std::function<void(const Instruction&)>& compute) {
  Counters counters(schedule);
  {
    std::vector<std::jthread> threads;
    for (const std::vector<int>& list : lists)
      threads.emplace_back([&schedule, &list, &counters, &compute] {
        run_queue(schedule, list, counters, compute);
      });
  }
  if (counters.failure()) std::rethrow_exception(counters.failure());
}

}  // namespace

void run_step(const Schedule& schedule, const Interleaving& interleaving,
              const std::function<void(const Instruction&)>& compute) {
  const std::vector<std::vector<int>> lists = lists_of(schedule);
  if (!interleaving.seed && interleaving.begin.empty())
    return run_threads(schedule, lists, compute);

  Execution execution(schedule, lists);
  const auto run = [&](int queue) {
    compute(schedule.instructions[execution.next(queue)]);
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
}

}  // namespace lockstep
