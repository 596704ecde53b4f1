#pragma once

#include <vector>

#include "src/judge/judged_rows.h"
#include "src/judge/pass_view.h"

namespace lockstep {

// Whether rows are drawn of nodes at that point: of caches and of choices all are judged, as this
// costs little.
bool draws_rows(const Point& point);

// The numbers of the rows that are judged of a node of that many, in their order: the same for the
// same node and seed, whoever asks, and others at every place and in every pass.
std::vector<size_t> drawn_rows(const RowsToJudge& asked, const Place& place, int32_t pass,
                               int32_t request, size_t rows);
// The node of those rows alone.
NodeRows drawn_of(const RowsToJudge& asked, const Place& place, int32_t pass, const NodeRows& node);

}  // namespace lockstep
