#include "src/judge/kv_history.h"

#include <cstring>

#include "probes/digest.h"

namespace lockstep {

void KvHistory::write(int layer, std::span<const Row> rows, const TensorView& k,
                      const TensorView& v) {
  const auto bytes = static_cast<size_t>(k.row_size() * size_of(k.dtype));
  std::vector<char> both(2 * bytes);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(both.data(), k.as<const char>() + i * bytes, bytes);
    std::memcpy(both.data() + bytes, v.as<const char>() + i * bytes, bytes);
    const uint64_t hash = hash_of(both.data(), both.size());

    Lane& lane = lanes_[{layer, rows[i].request}];
    lane.row_bytes = bytes;
    const auto position = static_cast<size_t>(rows[i].position);
    if (lane.hashes.size() <= position) {
      lane.hashes.resize(position + 1);
      lane.k.resize((position + 1) * bytes);
      lane.v.resize((position + 1) * bytes);
    }
    std::memcpy(lane.k.data() + position * bytes, both.data(), bytes);
    std::memcpy(lane.v.data() + position * bytes, both.data() + bytes, bytes);
    lane.hashes[position] = hash;
    writers_.try_emplace(hash, Place{layer, rows[i]});
  }
}

const KvHistory::Lane* KvHistory::lane(int layer, const Row& row) const {
  const auto found = lanes_.find({layer, row.request});
  if (found == lanes_.end()) return nullptr;
  const auto position = static_cast<size_t>(row.position);
  return position < found->second.hashes.size() && found->second.hashes[position] ? &found->second
                                                                                  : nullptr;
}

std::optional<uint64_t> KvHistory::hash(int layer, const Row& row) const {
  const Lane* found = lane(layer, row);
  return found ? found->hashes[static_cast<size_t>(row.position)] : std::nullopt;
}

const KvHistory::Place* KvHistory::writer_of(uint64_t hash) const {
  const auto found = writers_.find(hash);
  return found == writers_.end() ? nullptr : &found->second;
}

std::span<const char> KvHistory::k(int layer, const Row& row) const {
  const Lane* found = lane(layer, row);
  if (!found) return {};
  return {found->k.data() + static_cast<size_t>(row.position) * found->row_bytes, found->row_bytes};
}

std::span<const char> KvHistory::v(int layer, const Row& row) const {
  const Lane* found = lane(layer, row);
  if (!found) return {};
  return {found->v.data() + static_cast<size_t>(row.position) * found->row_bytes, found->row_bytes};
}

}  // namespace lockstep
