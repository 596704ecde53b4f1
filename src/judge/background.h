#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep {

// A thread that does one thing after another while its owner does others. It is the same one each
// time, since libraries keep threads and memory for every thread that calls them.
class Background {
 public:
  Background() : thread_([this](const std::stop_token& stop) { serve(stop); }) {}
  Background(const Background&) = delete;

  // Begins `work` once what was begun before has ended. What it reads must live until it has ended.
  void begin(std::function<void()> work);
  // Returns when nothing is being done. Throws what work threw, if any did since this was last
  // asked: of several the first.
  void wait();
  // The same, and what was thrown is forgotten.
  void let_end();
  // How many wait for what it does; they say so themselves, by the thread of its owner.
  int waited_for = 0;

 private:
  void serve(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::function<void()> work_;  // empty: there is none
  std::exception_ptr failure_;
  std::jthread thread_;
};

// Some of them. A thread is made when it is first needed.
class Backgrounds {
 public:
  explicit Backgrounds(size_t count) : all_(count) {}
  // The first that nobody waits for; the first of all where there is none.
  Background& idle();

 private:
  std::vector<std::unique_ptr<Background>> all_;
};

}  // namespace lockstep
