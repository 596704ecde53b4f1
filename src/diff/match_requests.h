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
  // Requests keep their numbers where those of one prompt have the same ones in both. Else a
  // request of b is paired with one of a that has its prompt: the one with its name, then one that
  // was fed the same tokens to the end, then the first that is free, in the order of either. Where
  // no prompt is left, with the one that it shares the most tokens with, of which one must be the
  // beginning of the other or both have their prompts in common. Requests that /requests does not
  // list are known by what they were fed. Both traces are borrowed, and read without their tensors.
  MatchedRequests(TraceReader& a, TraceReader& b);

  TraceReader& trace() const { return renamed_ ? *renamed_ : b_; }
  // One for each request that got another number.
  const std::vector<std::string>& sentences() const { return sentences_; }
  // One for each request that the other trace does not have.
  const std::vector<std::string>& alone() const { return alone_; }

 private:
  TraceReader& b_;
  std::unique_ptr<TraceReader> renamed_;  // null: the numbers stay
  std::vector<std::string> sentences_, alone_;
};

}  // namespace lockstep
