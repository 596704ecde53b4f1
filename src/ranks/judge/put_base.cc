// The axis of a part is the tensor's, whose first axis is that of rows: a base's row is one of it.
#include "src/ranks/judge/put_base.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/judge/budget.h"

namespace lockstep {
namespace {

// Copies from the whole row what of it is in `part`, which is one row of a rank's tensor.
// What has another shape or dtype stays as it is, which the comparison then says.
void put_part(const TensorView& part, const TensorView& whole, const std::optional<Shard>& shard) {
  if (part.dtype != whole.dtype || part.shape.rank() != whole.shape.rank()) return;
  if (!shard) {
    if (part.shape == whole.shape) std::memcpy(part.data, whole.data, whole.bytes());
    return;
  }
  int64_t before = 1, after = size_of(part.dtype);
  for (int axis = 0; axis < part.shape.rank(); ++axis) {
    if (axis < shard->axis) before *= part.shape[axis];
    if (axis > shard->axis) after *= part.shape[axis];
    if (axis != shard->axis && part.shape[axis] != whole.shape[axis]) return;
  }
  const int64_t count = part.shape[shard->axis], extent = whole.shape[shard->axis];
  if (shard->offset + count > extent) return;
  // Row-major: what lies behind the axis is one piece for each place before it.
  for (int64_t b = 0; b < before; ++b)
    std::memcpy(part.as<char>() + b * count * after,
                whole.as<const char>() + (b * extent + shard->offset) * after, count * after);
}

// Whether `partial` shows what ranks add to the sum.
bool is_partial_of(const Point& partial, const Point& sum) {
  return is_partial(partial) && partial.name.starts_with(sum.name) &&
         partial.name.size() == sum.name.size() + std::string_view("_partial").size();
}

}  // namespace

// The recorder copies first: what is compared is what the rank computed.
void PutBase::record(const Record& record) {
  if (seen_.wants(*record.point, record.layer)) seen_.record(record);
  const int place = base_.graph().index_of({record.point, record.layer});
  if (place < 0 || record.point->is_cache()) return;
  const std::optional<Shard> shard = plan_.shard_of(*record.point);
  for (size_t i = 0; i < record.rows.size(); ++i) {
    const TensorView whole = base_.find(static_cast<size_t>(place), record.rows[i]);
    if (!whole.empty()) put_part(record.tensor.slice(static_cast<int64_t>(i), 1), whole, shard);
  }
}

// Each of N terms is off by its own rounding, and of N - 1 additions all but the last by half a
// spacing at the sum of what is added, by size. What is looked up is in one rank, as it is.
std::vector<double> JoinedRanks::slack_of_sum(const Place& place, const Row& row) const {
  const auto of_place = [&](const RankTensor& t) {
    return t.layer == place.layer && is_partial_of(*t.point, *place.point);
  };
  const auto found = std::ranges::find_if(pass_.tensors, of_place);
  if (found == pass_.tensors.end()) return {};
  const auto number = std::ranges::find(found->rows, row) - found->rows.begin();
  if (number == std::ssize(found->rows)) return {};
  const TensorView partial = found->data.view().slice(number, 1);
  const int64_t ranks = partial.shape[1], size = partial.count() / ranks;
  std::vector<double> slack(static_cast<size_t>(size));
  if (place.point->op == OpKind::gather) return slack;
  for (int64_t i = 0; i < size; ++i) {
    double all = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const double term = value_at(partial, rank * size + i);
      all += std::fabs(term);
      slack[i] += ulp(term, partial.dtype) / 2;
    }
    slack[i] += static_cast<double>(ranks - 2) * ulp(all, partial.dtype) / 2;
  }
  return slack;
}

}  // namespace lockstep
