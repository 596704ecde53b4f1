// Whether two rows were computed of inputs with the same bits. For attention these are all rows of
// the cache up to its own; the first position at which two caches differ is looked for once a pair
// of passes, and kept.
#include "src/diff/input_bits.h"

#include <algorithm>
#include <limits>

namespace lockstep {

bool InputBits::equal(const ShownRow& x, const ShownRow& y, size_t index) {
  if (places_[index].point->is_cache()) {
    const auto written = a_.written(places_[index].layer, x.row());
    return written && written == b_.written(places_[index].layer, x.row());
  }
  return std::ranges::all_of(inputs_[index], [&](size_t input) {
    if (places_[input].point->is_cache()) return cache_equal(x, y, input);
    const auto of_x = a_.find(x.pass, input, x.row(), x.index);
    const auto of_y = b_.find(y.pass, input, x.row(), y.index);
    return of_x && of_y && of_x->same_bits(*of_y);
  });
}

bool InputBits::cache_equal(const ShownRow& x, const ShownRow& y, size_t cache) {
  const Row& row = x.row();
  const auto [known, fresh] = cache_differs_.try_emplace({x.pass, y.pass, cache, row.request}, 0);
  if (!fresh) return row.position < known->second;
  const auto of_x = a_.find(x.pass, cache, row, 0), of_y = b_.find(y.pass, cache, row, 0);
  if (!of_x || !of_y) return false;
  int32_t first = std::numeric_limits<int32_t>::max();
  const auto look = [&](const RecordedTensor& all, const RecordedTensor& others, bool bits) {
    for (size_t i = 0; i < all.rows.size(); ++i) {
      const auto same = index_of(others, all.rows[i], i);
      if (!same || (bits && !ShownRow{0, &all, i}.same_bits({0, &others, *same})))
        first = std::min(first, all.rows[i].position);
    }
  };
  look(*of_x->tensor, *of_y->tensor, true);
  look(*of_y->tensor, *of_x->tensor, false);
  known->second = first;
  return row.position < first;
}

}  // namespace lockstep
