#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/tensor.h"
#include "probes/record.h"

namespace lockstep {

// Every K/V row that the model has written, by (layer, request, position), in the bytes of its
// dtype: what attention must find again through its page table, and where a row that it found
// instead came from.
class KvHistory {
 public:
  struct Place {
    int layer = -1;
    Row row;
  };

  // Row i of k and v belongs to rows[i]. Both [rows, kv_heads, head_dim], CPU, of one shape and
  // dtype. A position that is written again replaces what it held.
  void write(int layer, std::span<const Row> rows, const TensorView& k, const TensorView& v);

  // xxh3 over the bytes of K, then V, of that position; nothing when it was never seen.
  std::optional<uint64_t> hash(int layer, const Row& row) const;
  // Who wrote a row of that hash first; null: nobody.
  const Place* writer_of(uint64_t hash) const;

  // Bytes of one position's K or V; empty when it was never seen.
  std::span<const char> k(int layer, const Row& row) const;
  std::span<const char> v(int layer, const Row& row) const;

 private:
  struct Lane {
    size_t row_bytes = 0;  // of K, and of V
    std::vector<char> k, v;
    std::vector<std::optional<uint64_t>> hashes;  // by position
  };
  const Lane* lane(int layer, const Row& row) const;

  std::map<std::pair<int, int32_t>, Lane> lanes_;  // by (layer, request)
  std::unordered_map<uint64_t, Place> writers_;
};

}  // namespace lockstep
