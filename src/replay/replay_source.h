// The parts of a trace that one op is computed again from, and who computes it.
#pragma once

#include <vector>

#include "src/replay/call_places.h"
#include "src/replay/replay.h"
#include "src/session/judged_trace.h"

namespace lockstep {

// The place that the options name. Throws Error with what is wrong with them.
Place place_of(const ReplayOptions& options, const Graph& graph);

// The places of a pass that replaying one of them needs: it, what it reads, and what wrote the
// cache that it reads.
std::vector<Place> needed_by(const Place& place, const Graph& graph);
// The same of a call; a cache that it writes needs nothing.
std::vector<Place> needed_by(const CallPlaces& call, const Graph& graph);
// A pass of the trace that has those places alone; no others are read. Halves of RoPE are put as
// the model has them, where the trace has them interleaved.
Pass read_only(const OpenedTrace& trace, int pass, const std::vector<Place>& places);

// The advice where a trace lacks what an op reads: its engine may show nothing else.
const char* remedy_of(const Manifest& manifest);

// Lockstep's own ops of that device, and the user's, if there are any. Throws Error where the user
// has none that computes the place. Lockstep's come first.
std::vector<Implementation> implementations_of(const ReplayOptions& options, Device device,
                                               const Place& place);

// The call that makes the place: of the user's op of that name, or, without a name, of a fused op
// of the user's where there is one that does, as in a run, else of the op alone. Lockstep's own
// fused op is made of its pieces.
struct CallSource {
  CallPlaces call;
  std::vector<Implementation> implementations;
};
CallSource call_source_of(const ReplayOptions& options, std::string_view op, Device device,
                          const Place& place, const Graph& graph);

}  // namespace lockstep
