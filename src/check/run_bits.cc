// The hash of a row is mixed with who it is (request and position for the sum of a place, point and
// layer for the sum of a row) and added. Sums modulo 2^64 commute, so that chunked prefill, other
// batches and a preempted request give the same numbers; mixing sees to it that two rows that
// exchange places do not.
#include "src/check/run_bits.h"

#include <array>
#include <utility>

#include "probes/digest.h"

namespace lockstep {
namespace {

// The share of a row's numbers in a sum: rows that change places must change it.
uint64_t mixed(uint64_t hash, int64_t a, int64_t b) {
  const std::array<uint64_t, 3> parts{hash, static_cast<uint64_t>(a), static_cast<uint64_t>(b)};
  return hash_of(parts.data(), sizeof parts);
}

template <typename Map, typename Key>
uint64_t value_of(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? 0 : found->second;
}

}  // namespace

void RunBits::add(const Pass& pass) {
  for (const RecordedTensor& tensor : pass.tensors) {
    if (tensor.point->is_cache() || tensor.data.view().empty()) continue;
    const int order = tensor.point->order();
    uint64_t& place = places_[{order, tensor.layer}];
    const std::vector<uint64_t> hashes = row_hashes_of(tensor.data);
    for (size_t i = 0; i < hashes.size() && i < tensor.rows.size(); ++i) {
      const Row& row = tensor.rows[i];
      place += mixed(hashes[i], row.request, row.position);
      rows_[{row.request, row.position}] += mixed(hashes[i], order, tensor.layer);
    }
  }
  for (const TopLogits& top : pass.logits) tops_[{top.row.request, top.row.position}] = top;
}

uint64_t RunBits::of(const Place& place) const {
  return value_of(places_, std::pair(place.point->order(), place.layer));
}

uint64_t RunBits::of(const Row& row) const {
  return value_of(rows_, std::pair(row.request, row.position));
}

const TopLogits* RunBits::choice_of(const Row& row) const {
  const auto found = tops_.find({row.request, row.position});
  return found == tops_.end() ? nullptr : &found->second;
}

}  // namespace lockstep
