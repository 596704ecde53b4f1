#include "src/replay/found_cache.h"

#include <algorithm>
#include <utility>

#include "src/judge/cache_read.h"

namespace lockstep {

void FoundCache::remember_writes(const Pass& pass) {
  written_.begin(pass.info);
  const RecordedTensor* k = pass.find(*k_.point, k_.layer);
  const RecordedTensor* v = pass.find(*v_.point, v_.layer);
  const bool fit = k && v && !k->data.view().empty() && !v->data.view().empty() &&
                   k->rows == v->rows && k->shape == v->shape && k->dtype == v->dtype &&
                   k->shape.rank() == 3 && k->shape[0] == std::ssize(k->rows);
  if (fit) written_.write(cache_.layer, k->rows, k->data, v->data);
}

void FoundCache::remember_shown(const RecordedTensor& kv, const std::vector<uint64_t>& hashes) {
  for (size_t i = 0; i < hashes.size(); ++i) {
    const size_t position = kv.rows[i].position;
    std::vector<uint64_t>& shown = shown_[kv.rows[i].request];
    if (shown.size() <= position) shown.resize(position + 1);
    shown[position] = hashes[i];
    if (const uint64_t tokens = written_.prefix(kv.rows[i]); tokens != 0)
      of_tokens_[tokens] = hashes[i];
  }
}

uint64_t FoundCache::shown_before(const Row& row) const {
  const size_t position = row.position;
  const auto own = shown_.find(row.request);
  if (own != shown_.end() && position < own->second.size() && own->second[position] != 0)
    return own->second[position];
  const auto same = of_tokens_.find(written_.prefix(row));
  return same == of_tokens_.end() ? 0 : same->second;
}

Pass FoundCache::without_found(const Pass& pass) {
  remember_writes(pass);
  Pass other = pass;
  for (RecordedTensor& tensor : other.tensors) {
    if (!(Place{tensor.point, tensor.layer} == cache_)) continue;
    const std::vector<uint64_t> hashes = hashes_of(tensor);
    if (hashes.size() != tensor.rows.size()) continue;
    tensor.row_hashes = hashes;
    for (size_t i = 0; i < hashes.size(); ++i) {
      const Row& row = tensor.rows[i];
      if (std::ranges::count(pass.info.rows, row, &PassRow::row) > 0) continue;
      if (hashes[i] == shown_before(row) && right(row) != 0) tensor.row_hashes[i] = right(row);
    }
  }
  // Requests of one pass that share tokens are all held to what was shown before it.
  for (const RecordedTensor& tensor : pass.tensors)
    if (Place{tensor.point, tensor.layer} == cache_)
      if (const auto hashes = hashes_of(tensor); hashes.size() == tensor.rows.size())
        remember_shown(tensor, hashes);
  return other;
}

std::vector<RecordedTensor> FoundCache::without_given(std::vector<RecordedTensor> made,
                                                      const Pass& pass,
                                                      const std::vector<Row>& writes) const {
  for (RecordedTensor& tensor : made) {
    if (!(Place{tensor.point, tensor.layer} == cache_) || tensor.rows.empty()) continue;
    const RecordedTensor* given = pass.find(*cache_.point, cache_.layer, tensor.rows[0].request);
    const std::vector<uint64_t> before = given ? hashes_of(*given) : std::vector<uint64_t>();
    const std::vector<uint64_t> hashes = hashes_of(tensor);
    if (hashes.size() != tensor.rows.size() || before.size() < hashes.size()) continue;
    tensor.row_hashes = hashes;
    for (size_t i = 0; i < hashes.size(); ++i) {
      const Row& row = tensor.rows[i];
      if (std::ranges::count(writes, row) > 0 || given->rows[i] != row) continue;
      if (hashes[i] == before[i] && right(row) != 0) tensor.row_hashes[i] = right(row);
    }
  }
  return made;
}

}  // namespace lockstep
