#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// How a request chooses its tokens. The default is greedy: always the most likely one. Values are
// as a user gives them, unchecked until check_ranges().
struct Sampling {
  double temperature = 0;         // the logits are divided by it; 0: the most likely token
  int64_t top_k = 0;              // choose among that many; 0: all
  double top_p = 1;               // choose among the fewest that together are that likely
  double min_p = 0;               // and at least that likely, in units of the most likely one
  double repetition_penalty = 1;  // over 1: tokens that are in the text already become less likely
  uint64_t seed = 0;
  int64_t logprobs = 0;  // keep the log-probabilities of that many of the most likely; 0: of none

  // Whether the choice is the argmax of the logits and nothing else.
  bool argmax() const { return temperature == 0 && repetition_penalty == 1; }
  // Throws Error when a value is out of its range; `whose` begins the sentence.
  void check_ranges(const std::string& whose) const;
};

}  // namespace lockstep
