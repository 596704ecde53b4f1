// A wrong place whose op reads what was not recorded: one of the hidden ops of its region, or its
// own, went wrong. A hypothesis about one of them is computed, and sent on through those behind it
// to what was recorded.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/causes/fit.h"
#include "src/judge/hypotheses.h"
#include "src/judge/judge.h"

namespace lockstep {

// A hypothesis about ops of a region, by their numbers there, of which the recorded place's own is
// the last. Several are siblings that went wrong in the same way, as one function computes them.
struct RegionGuess {
  std::vector<size_t> ops;
  Guess guess;
  bool operator==(const RegionGuess&) const = default;
};

// A pass's part in such a place. Everything is borrowed and must outlive it.
class RegionInPass {
 public:
  // hidden: the places of the region in graph order. wrong: requests whose nodes were found so.
  // Null where the chain cannot be computed from what the pass has: K and V of earlier passes are
  // hidden, or it is too large.
  static std::unique_ptr<RegionInPass> of(const Pass& pass, const Place& place,
                                          const std::vector<Place>& hidden,
                                          const std::set<int32_t>& wrong, const Manifest& manifest,
                                          const Judge& judge, Oracle& oracle,
                                          Hypotheses& hypotheses);
  virtual ~RegionInPass() = default;

  struct Tried {
    RegionGuess guess;
    std::vector<Place> places;  // that it is about
    std::string says;           // of the guess alone
    Fit fit;
  };
  // The hypotheses about single ops of the region that explain what was stored; where none does,
  // those about siblings together. before_each: called before each of them is computed.
  virtual std::vector<Tried> search(const std::function<void()>& before_each) = 0;
  // One of them held against this pass too; none: it says nothing here.
  virtual std::optional<Fit> fit(const RegionGuess& guess) = 0;
};

}  // namespace lockstep
