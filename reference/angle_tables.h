// The rotary tables of the oracle.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "reference/recipe.h"
#include "reference/rotary.h"
#include "src/judge/oracle.h"

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}

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

  explicit AngleTables(const Recipe& recipe);
  ~AngleTables();
  AngleTables(const AngleTables&) = delete;

  // Those of the rows of a call, on that device or in host memory. Several threads may ask. Throws
  // Error where a row has no length.
  OfRows of(const OracleCall& call, const c10::Device& where);

 private:
  std::shared_ptr<const Kept> made_of(const OracleCall& call, bool iterated,
                                      const c10::Device& where);

  Rotary rotary_;
  int64_t pairs_;
  std::mutex mutex_;  // guards what is kept
  std::deque<std::shared_ptr<const Kept>> kept_;
};

}  // namespace lockstep
