// Blocks of rows differ between queries and keys, which are narrower: so the tables of some calls
// are kept, and not of the last one alone.
#include "reference/angle_tables.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "reference/own_stream.h"

namespace lockstep {
namespace {

constexpr size_t kMostKept = 4;

}  // namespace

struct AngleTables::Kept {
  std::vector<Row> rows;
  std::vector<int64_t> lengths;
  bool iterated;
  at::Tensor cos, sin, error;
};

AngleTables::AngleTables(const Recipe& recipe)
    : rotary_(recipe, /*in_fp32=*/false), pairs_(recipe.head_dim / 2) {}

AngleTables::~AngleTables() = default;

AngleTables::OfRows AngleTables::of(const OracleCall& call, const c10::Device& where) {
  check(call.lengths.size() == call.rows.size(),
        "{} needs the length of the request of each of {} rows, found {}", call.place.point->name,
        call.rows.size(), call.lengths.size());
  const bool iterated = call.contract == RoundingContract::angles_iterated;
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find_if(kept_, [&](const std::shared_ptr<const Kept>& kept) {
    return kept->iterated == iterated && kept->cos.device() == where &&
           std::ranges::equal(kept->rows, call.rows) &&
           std::ranges::equal(kept->lengths, call.lengths);
  });
  if (found == kept_.end()) {
    if (kept_.size() == kMostKept) kept_.pop_front();
    found = kept_.insert(kept_.end(), made_of(call, iterated, where));
  }
  for (const at::Tensor& table : {(*found)->cos, (*found)->sin, (*found)->error})
    keep_for_queued(table);
  return {*found, (*found)->cos, (*found)->sin, (*found)->error};
}

std::shared_ptr<const AngleTables::Kept> AngleTables::made_of(const OracleCall& call, bool iterated,
                                                              const c10::Device& where) {
  Angles angles;
  for (size_t i = 0; i < call.rows.size(); ++i)
    rotary_.append(angles, call.rows[i].position, call.lengths[i], iterated);
  const auto table = [&](std::vector<double>& values) {
    return at::from_blob(values.data(), {std::ssize(call.rows), pairs_}, at::kDouble)
        .clone()
        .to(where);
  };
  return std::make_shared<const Kept>(Kept{{call.rows.begin(), call.rows.end()},
                                           {call.lengths.begin(), call.lengths.end()},
                                           iterated,
                                           table(angles.cos),
                                           table(angles.sin),
                                           table(angles.error)});
}

}  // namespace lockstep
