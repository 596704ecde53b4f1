#pragma once

#include <memory>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace lockstep {

// Another engine numbers its requests in its own way: a trace as if its requests had the numbers
// that those with the same tokens have in another one.
class MatchedRequests {
 public:
  // Requests of one number stay paired where both have that prompt, or where no other fits. Else a
  // request of b is paired with that of a which has its prompt: of several the one with its name,
  // then the first that is free. Both traces are borrowed.
  MatchedRequests(TraceReader& a, TraceReader& b);

  TraceReader& trace() const { return renamed_ ? *renamed_ : b_; }
  // One for each request that got another number.
  const std::vector<std::string>& sentences() const { return sentences_; }

 private:
  TraceReader& b_;
  std::unique_ptr<TraceReader> renamed_;  // null: the numbers stay
  std::vector<std::string> sentences_;
};

}  // namespace lockstep
