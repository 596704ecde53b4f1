#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "probes/graph.h"
#include "src/diff/diff_side.h"

namespace lockstep {

// Whether what an op read has the same bits in two traces, row by row.
class InputBits {
 public:
  // All are borrowed. inputs: by place, the numbers of those that its op reads.
  InputBits(DiffSide& a, DiffSide& b, const std::vector<Place>& places,
            const std::vector<std::vector<size_t>>& inputs)
      : a_(a), b_(b), places_(places), inputs_(inputs) {}

  // Asks it of the op at a place, for that row; false where an input is not shown. Rows of a cache
  // are copies of what was written for their tokens.
  bool equal(const ShownRow& x, const ShownRow& y, size_t index);
  // Forgets what was found of other passes.
  void begin_pass() { cache_differs_.clear(); }

 private:
  // Whether all rows of a cache that the row reads have the same bits.
  bool cache_equal(const ShownRow& x, const ShownRow& y, size_t cache);

  DiffSide &a_, &b_;
  const std::vector<Place>& places_;
  const std::vector<std::vector<size_t>>& inputs_;
  // The first position of a cache that differs, by the passes of both, place and request.
  std::map<std::tuple<int, int, size_t, int32_t>, int32_t> cache_differs_;
};

}  // namespace lockstep
