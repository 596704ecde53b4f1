#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep {

// A thread that does one thing after another while its owner does others. It is the same one each
// time, since libraries keep threads and memory for every thread that calls them.
class Background {
 public:
  Background() : thread_([this](const std::stop_token& stop) { serve(stop); }) {}
  Background(const Background&) = delete;

  // Begins `work`, which must not throw, once what was begun before has ended. What it reads must
  // live until it has ended.
  void begin(std::function<void()> work);
  // Returns when nothing is being done.
  void wait();

 private:
  void serve(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::function<void()> work_;  // empty: there is none
  std::jthread thread_;
};

}  // namespace lockstep
