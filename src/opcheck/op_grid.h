// The shapes that an op is tried on alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "probes/graph.h"
#include "src/replay/small_model.h"

namespace lockstep {

// A fact about a case, "head_dim" "80"; common_to() looks for those that wrong cases share.
struct Trait {
  std::string name, value;

  Trait(std::string name_, std::string value_) : name(std::move(name_)), value(std::move(value_)) {}
  Trait(std::string name_, int64_t value_)
      : name(std::move(name_)), value(std::to_string(value_)) {}
  bool operator==(const Trait&) const = default;
};

// One shape of an op.
struct GridCase {
  // The rows that a pass computes of one request, `count` of them from position `first` on. `first`
  // positions precede it, which the request has in its cache.
  struct Stretch {
    int32_t first = 0, count = 1;
  };

  // The kinds of numbers that a case can have.
  enum class Values : uint8_t {
    usual,
    large,  // fp16 overflows on the way, and the result may
    tiny,   // near the subnormal numbers of the dtype, and some are
    zeros,  // every third row is 0
    ties,   // equal ones in a row
    huge,   // sums overflow each dtype, results of norms fp16, and no number on the way does
    nan,    // some are NaN
    low,    // logits far below 0: near the lowest number, and -inf
    small,  // gates of all sizes down to 2^-40, of which a SiLU makes half
  };

  std::string_view point;  // that the op names in its call; of a layer, that is layer 0
  SmallModel model;
  // By pass, then by request; a request that begins past 0 in the first pass inherits what
  // precedes.
  std::vector<std::vector<Stretch>> passes;
  int64_t page_size = 16;
  Values values = Values::usual;
  bool timed = false;         // a usual shape: how fast it is says something
  bool thin = false;          // so large that it is tried in one dtype alone
  std::vector<Trait> traits;  // beside those that every case has
};

// The places of an op in a model of one layer. An op of one line stores one output; a fused one
// several, and has places inside of it that nobody sees.
struct OpPlaces {
  std::vector<Place> outputs;  // the first is not always the one that it names
  std::vector<Place> reads;
  std::vector<Place> hidden;  // inside of it: what a fused op stores nowhere
  bool turns = false;         // it reads the rotary tables too
};
OpPlaces places_of(std::string_view op, const GridCase& shape);

// The shapes of an op by its name in lockstep_ops.h, the smallest first. Never empty.
std::vector<GridCase> grid_of(std::string_view op);

// All that is said of a case.
std::vector<Trait> traits_of(const GridCase& shape, DType dtype);
std::string text_of(const std::vector<Trait>& traits);

}  // namespace lockstep
