// A fingerprint of a whole run in a few bytes a place and a position, by which two runs are told
// equal to the bit without keeping either. Filled on the thread that judges, pass by pass.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "probes/graph.h"
#include "probes/recorder.h"

namespace lockstep {

// Hashes of all numbers that the passes of a run showed, by place and by row, and the most likely
// tokens of each choice. They do not depend on which rows a pass computes together: a sum modulo
// 2^64 of the hashes of single rows is the same in any order. Reads of the cache are left out, for
// they show again what was written, each pass all of it. Hashes are the same on every machine that
// computes the same bits.
class RunBits {
 public:
  void add(const Pass& pass);  // of a run's passes, with their tensors

  // 0: nothing was shown there.
  uint64_t of(const Place& place) const;
  uint64_t of(const Row& row) const;
  // The best logits of the row; null when it chose nothing.
  const TopLogits* choice_of(const Row& row) const;

 private:
  std::map<std::pair<int, int>, uint64_t> places_;         // by order of the point and layer
  std::map<std::pair<int32_t, int32_t>, uint64_t> rows_;   // by request and position
  std::map<std::pair<int32_t, int32_t>, TopLogits> tops_;  // the same
};

}  // namespace lockstep
