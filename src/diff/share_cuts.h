#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/diff/diff_side.h"

namespace lockstep {

// Which rows of attn.partial and attn.lse of two traces are of other keys. Attention is cut by the
// pages that a request has after the pass, so that pages of another size, another number of shares
// or a prompt in chunks give a query shares that no number of the other trace is to be held to;
// what they are merged to is the same. For one thread.
class ShareCuts {
 public:
  // Whether the two are of shares of which one holds keys, of those that the query sees, that its
  // counterpart does not; counts them. Where a trace does not say the size of its pages, shares as
  // many are taken for the same. Throws Error when it says one that is none.
  bool unlike(DiffSide& a, const ShownRow& x, DiffSide& b, const ShownRow& y);
  std::string sentence() const;  // of those that were unlike; "": none were

 private:
  using Lengths = std::map<std::pair<int, int32_t>, int64_t>;  // by pass, request
  // The first keys of a row's shares, and past the last one; none: not known.
  static std::vector<int64_t> begins_of(DiffSide& side, const ShownRow& row, Lengths& lengths);

  Lengths lengths_a_, lengths_b_;  // after the pass
  int64_t rows_ = 0;
};

}  // namespace lockstep
