// The merges of byte pair encoding (Sennrich, Haddow and Birch 2016, on bytes as GPT-2 has it).
//
//   "ROMEO"  ->  R O M E O  ->  R O ME O  ->  RO ME O  ->  ids
//                bytes          by rank: the merge of lowest rank first
//
// Immutable once its merges are added; many threads may encode.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep {

// Byte pair encoding: a word's bytes become tokens by merging, again and again, the neighbours
// whose merge has the lowest rank, the leftmost first. n log n in the length of the word.
class Bpe {
 public:
  // `ids` has the id of each token by its bytes. Throws Error, naming the file `path`, unless every
  // single byte is a token.
  Bpe(const std::unordered_map<std::string, int32_t>& ids, const std::string& path);

  // The tokens left and right become one; ranks count up from 0 in the order of these calls.
  // A pair given twice keeps its last rank, as the original does.
  void add_merge(int32_t left, int32_t right, int32_t merged);

  // Appends the tokens of one word.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  const Merge* find(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<uint64_t, Merge> merges_;
  int32_t next_rank_ = 0;
};

}  // namespace lockstep
