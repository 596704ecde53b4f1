#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "probes/recorder.h"
#include "src/judge/verdict.h"
#include "traces/trace.h"

namespace lockstep {

// Draws every sampled token of a run again, from the logits that the trace shows and what it says
// of how its requests draw, and holds the token that was taken to it.
class DrawReplay {
 public:
  // requests: as far as they are known before the run. Samples of a prompt that part from it later
  // are known at the end, and their logits are kept until then.
  explicit DrawReplay(const std::vector<RequestInfo>& requests) : known_(requests) {}

  // text: the tokens of a request up to a position, that one included.
  using Text = std::function<std::vector<int32_t>(const Row& row)>;
  void add(const Pass& pass, const Text& text);

  struct Outcome {
    std::vector<Finding> findings;  // at token
    int64_t drawn = 0;              // tokens that were drawn
    int64_t replayed = 0;           // of them, that were drawn again
  };
  Outcome outcome(const std::vector<RequestInfo>& requests) const;

 private:
  struct Choice {
    int32_t pass = 0;
    // `text` and `logits` are kept only while the way to draw is not known.
    std::vector<int32_t> text;      // empty once it was drawn again
    std::vector<float> logits;      // the same
    std::vector<int32_t> possible;  // tokens; empty: not known
  };
  const RequestInfo* find(int32_t request) const;

  std::vector<RequestInfo> known_;
  std::map<std::pair<int32_t, int32_t>, Choice> choices_;  // by (request, position)
  int64_t kept_ = 0;                                       // logits
};

}  // namespace lockstep
