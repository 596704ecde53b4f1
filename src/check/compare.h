// A run beside its baseline: the table of texts that both have, and what is made of it. Borrows
// both; called once, when the run has ended.
#pragma once

#include <vector>

#include "src/check/check.h"

namespace lockstep {

// The texts of a run beside those of its baseline, the i-th beside the i-th. What it says is made
// at once: neither the baseline nor the run is kept.
class TextMatch {
 public:
  // `drawn` says of each request whether it was served freely; other texts are samples of one.
  TextMatch(const Baseline& baseline, const Result& run, const std::vector<bool>& drawn);

  size_t size() const { return texts_.size(); }
  // Tokens of a text that are the baseline's, up to the first other one. All of a forced text are,
  // but perhaps its last, which is never fed.
  size_t same(size_t text) const { return texts_[text].same; }
  // Whether the text was drawn, and fed other tokens than the baseline's: then it is another one.
  bool left(size_t text) const { return texts_[text].left; }
  bool any_left() const;

 private:
  struct Text {
    size_t same;
    bool left;
  };
  std::vector<Text> texts_;
};

// A run that was judged, and all that it is compared by.
struct Compared {
  const Baseline& baseline;
  const Result& run;
  const RunBits& bits;
  const TextMatch& texts;
};

// Holds a run that was judged and the bits that it showed to a baseline of the same requests. Fills
// in all of the result but what says how the run was made.
CheckResult compare(const Baseline& baseline, Result run, const RunBits& bits,
                    const std::vector<bool>& drawn, const CheckOptions& options);

// The notes of it.
std::vector<CheckResult::Item> notes_of(const Compared& compared,
                                        const std::vector<CheckResult::ClassDrift>& classes,
                                        double max_drift);

}  // namespace lockstep
