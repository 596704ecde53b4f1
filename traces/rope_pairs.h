#pragma once

#include <memory>
#include <string>

#include "probes/recorder.h"
#include "traces/trace.h"

namespace lockstep {

// The provenance's name for how a trace holds the pairs that RoPE turns: "half", dims i and
// i + dim / 2, as the points have them, or "interleaved", dims 2 i and 2 i + 1.
inline constexpr const char* kRopePairs = "rope_pairs";

// Whether the trace says that its pairs are interleaved; asked, unless empty, takes the place of
// what it says. Throws Error on another word than those two.
bool has_interleaved_pairs(const Manifest& manifest, const std::string& asked);

// Puts the numbers of Q and K, before and after their norms and RoPE and in the cache, into halves,
// with their hashes. Statistics stay, but for where the largest element lies.
void put_pairs_in_halves(Pass& pass);

// Two traces that are to be compared, with their pairs in one order: where one of the two alone
// says that its are interleaved, it is read in halves. The hashes of what it kept no numbers of are
// then left out, as those of the other order are not known. Both are borrowed.
class AlikePairs {
 public:
  // Throws Error as has_interleaved_pairs() does.
  AlikePairs(TraceReader& a, TraceReader& b);

  TraceReader& a() const { return halves_of_a_ ? *halves_of_a_ : a_; }
  TraceReader& b() const { return halves_of_b_ ? *halves_of_b_ : b_; }
  // Says in which trace they were put in halves; "": in neither.
  std::string sentence() const;

 private:
  TraceReader &a_, &b_;
  std::unique_ptr<TraceReader> halves_of_a_, halves_of_b_;
};

}  // namespace lockstep
