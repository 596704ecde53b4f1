#pragma once

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

}  // namespace lockstep
