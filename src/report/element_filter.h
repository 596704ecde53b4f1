#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "probes/recorder.h"
#include "probes/selection.h"

namespace lockstep {

// The elements of a tensor that --head and --slice leave: ranges along its axes, the first of which
// is the position of a row in its request.
class ElementFilter {
 public:
  // heads: "3", "0,2-4" along the point's axis of heads; slice: "[16, 3, :8]", an index or a range
  // FIRST:END an axis, which may lack either side; axes that are left out are whole. Empty texts
  // leave everything. Throws Error on any other text.
  ElementFilter(const std::string& heads, const std::string& slice);

  bool has(const Row& row) const;
  // The places in a row of those elements, ascending. Throws Error when the tensor has no axis of
  // heads, fewer axes, or nothing there.
  std::vector<int64_t> offsets(const RecordedTensor& tensor) const;
  // The extents of what is left of a row: [3, 8]. Its product is the number of offsets().
  std::vector<int64_t> extents(const RecordedTensor& tensor) const;

 private:
  using Range = std::pair<int64_t, int64_t>;  // inclusive
  // By axis, those of rows included: whether an index is wanted.
  std::vector<std::vector<int64_t>> wanted(const RecordedTensor& tensor) const;

  std::vector<Range> heads_, slice_;
};

}  // namespace lockstep
