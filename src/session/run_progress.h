#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace lockstep {

// Follows a run pass by pass and hands out its line, ten times a second at most.
class RunProgress {
 public:
  // The line that says how far a judged run is, where in the model it is, and when it may end.
  // `share` of all tokens are done after `seconds`; an estimate is made from a whole pass on.
  //   "pass 3, 4 tokens: judging layer 12 of 28; 31 of 58 tokens, 2.1 a second, about 13 s left"
  struct Moment {
    int32_t pass = 0;
    int64_t rows = 0;             // tokens of the pass
    std::string_view doing;       // "computing", "judging"
    int layer = 0, layers = 0;    // -1: of no layer
    int64_t done = 0, total = 0;  // tokens of the passes that have ended, and of the run
    double seconds = 0;           // since the run began

    std::string text() const;
  };

  using Show = std::function<void(const std::string& line)>;
  // `total`: tokens that will be fed. An empty `show` makes every call cost nothing.
  RunProgress(Show show, int layers, int64_t total);

  // One thread computes while another may judge.
  void begin_pass(int32_t pass, int64_t rows);
  void at(std::string_view doing, int layer);
  void end_pass();

 private:
  using Clock = std::chrono::steady_clock;
  std::mutex mutex_;  // guards all below
  Show show_;
  Moment moment_;
  Clock::time_point begin_ = Clock::now(), shown_{};
};

}  // namespace lockstep
