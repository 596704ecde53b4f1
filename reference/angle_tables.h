// The rotary tables of the oracle, where it computes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "reference/held_weights.h"
#include "reference/recipe.h"
#include "reference/rotary.h"
#include "src/judge/oracle.h"

namespace lockstep {

// The tables of the last calls are kept: every layer turns the same rows, and a table takes the
// host longer than the op takes a device.
class AngleTables {
  struct Kept;

 public:
  // [rows, head_dim / 2] each, fp64: as Angles has them.
  struct OfRows {
    std::shared_ptr<const Kept> kept;  // whose they are
    const at::Tensor &cos, &sin, &error;
  };

  // weights: which say where they are to be; borrowed.
  AngleTables(const Recipe& recipe, const HeldWeights& weights);
  ~AngleTables();
  AngleTables(const AngleTables&) = delete;

  // Those of the rows of a call. Several threads may ask. Throws Error where a row has no length.
  OfRows of(const OracleCall& call);

 private:
  std::shared_ptr<const Kept> made_of(const OracleCall& call, bool iterated);

  Rotary rotary_;
  int64_t pairs_;
  const HeldWeights& weights_;
  std::mutex mutex_;  // guards what is kept
  std::deque<std::shared_ptr<const Kept>> kept_;
};

}  // namespace lockstep
