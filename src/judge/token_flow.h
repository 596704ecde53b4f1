#pragma once

#include <map>
#include <string>
#include <vector>

#include "probes/recorder.h"
#include "src/judge/ledger.h"
#include "src/judge/seen.h"
#include "traces/trace.h"

namespace lockstep {

// Whether the passes hang together: positions of a request follow each other, and what is fed at a
// position is the prompt, what was forced, or what was chosen one position earlier.
class TokenFlow {
 public:
  void begin(const Pass& pass);
  // Whether every request of this pass, and of all before it, went on where it had stopped or its
  // inherited tokens end, or started again earlier.
  bool continues() const { return continues_; }
  // Makes the outcome of embed structural where this pass's positions do not follow.
  void check_order(const NodeRows& node, NodeOutcome& outcome) const;

  // One structural finding, at embed, for every pass and request that was fed another token than it
  // should have been. Known only at the end: a run may be forced from outside.
  std::vector<Finding> wrong_tokens(const std::vector<RequestInfo>& requests) const;

 private:
  struct Fed {
    int32_t position, token, pass;
  };
  std::map<int32_t, int32_t> next_;         // position by request
  std::map<int32_t, std::string> trouble_;  // of this pass, by request
  std::map<int32_t, std::vector<Fed>> fed_;
  std::map<std::pair<int32_t, int32_t>, int32_t> chosen_;  // by (request, position)
  bool continues_ = true;
};

}  // namespace lockstep
