// Where the errors of a row lie. It stands apart from the measuring of rows, which is done of every
// row and is slower as soon as the compiler has two callers to serve.
#include <cmath>
#include <limits>

#include "src/stats/statistics.h"

namespace lockstep {

ErrorProfile Meter::profile_of(int64_t position, const RowNumbers& row) const {
  const auto axes = options_.row_shape.extents();
  ErrorProfile profile(axes.empty() ? std::vector<int64_t>{1}
                                    : std::vector<int64_t>(axes.begin(), axes.end()));
  for (size_t i = 0; i < row.got.size(); ++i) {
    const int64_t offset = i;
    const Stored stored_ = stored(position, offset, row);
    const Measure::NonFinite kind = kind_of(stored_, row.limit[i]);
    if (kind == Measure::NonFinite::expected || kind == Measure::NonFinite::propagated) continue;
    const Element& e = stored_.element;
    const bool number = kind == Measure::NonFinite::none && !std::isnan(e.budgets);
    profile.add(position, offset, e.want, e.got,
                number ? e.budgets : std::numeric_limits<double>::infinity());
  }
  profile.rows = profile.elements > 0 ? 1 : 0;
  return profile;
}

}  // namespace lockstep
