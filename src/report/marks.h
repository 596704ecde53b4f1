// How verdicts and differences are shown in a map of layers and points: the same on a screen and on
// a page.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/diff/diff.h"
#include "src/judge/verdict.h"

namespace lockstep {

// A glyph stands beside every colour, so that no colour is needed. Its texts are constants of the
// program, and so are the marks that are handed out.
struct Mark {
  std::string_view name;   // and class of its colours on a page
  std::string_view glyph;  // one character
  std::string_view says;
};

// All of them, in the order of a legend.
std::span<const Mark> marks();
// The mark of a verdict as a finding has it.
const Mark& mark_of(Verdict verdict);
// The mark of a place of a result. What is not finite there and no finding overflows as it should.
const Mark& mark_of(const Result& result, const PlaceSummary& place);

// By place of the result: whether a finding is there. In the order of Result::places.
std::vector<bool> wrong_places(const Result& result);

// The mark of a place of two traces: "=" equal bits, "#" other hashes and no numbers, "x" other
// choices, "!" not finite in one only or another shape, or else how far apart the place is in ulps,
// in three characters.
std::string mark_of(const DiffPlace& place);
// The meaning of a mark that is no number.
std::string_view meaning_of_mark(std::string_view mark);

}  // namespace lockstep
