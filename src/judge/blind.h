#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "probes/recorder.h"

namespace lockstep {

// What of a run decides which bugs could have shown in it.
class RunFacts {
 public:
  void add(const Pass& pass);
  // Which bugs this run could not have shown, and why, a sentence's part each.
  std::vector<std::string> blind_to() const;

 private:
  std::map<int32_t, int32_t> lengths_;  // tokens by request
  size_t most_pages_ = 0, most_requests_ = 0;
  bool decodes_ = false;    // a pass feeds a token that was chosen
  bool chunked_ = false;    // several queries over a longer cache
  bool scattered_ = false;  // the pages of a request are not in the order of their numbers
  bool slots_known_ = false;
  int64_t heads_ = 0, kv_heads_ = 0;
};

}  // namespace lockstep
