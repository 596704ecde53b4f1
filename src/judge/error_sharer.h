// The question where the error of the logits comes from, as the judge asks it of a reference.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/memory.h"
#include "probes/graph.h"

namespace lockstep {

// Rows of one place as they were stored.
struct RecordedRows {
  Tensor data;                 // [rows, axes of the point ...]
  std::vector<uint8_t> there;  // one a row: whether it was recorded
};

// All that was stored of one request, whatever passes it came in: row i of a place is position i,
// and of logits position logit_rows[i], which are all there.
struct RecordedText {
  using Key = std::pair<int, int>;  // order of the point, layer
  std::vector<int32_t> tokens;      // that were fed
  std::vector<int64_t> lengths;     // of the request after the pass that computed the position
  std::vector<int32_t> logit_rows;
  std::map<Key, RecordedRows> rows;

  const RecordedRows* find(const Place& place) const {
    const auto found = rows.find({place.point->order(), place.layer});
    return found == rows.end() ? nullptr : &found->second;
  }
};

// How much of the error E of a text's logits each op's own error causes. With F(t) the logits of
// the exact model into which t times the introduced error of every op is put (what was stored,
// less the exact result on what was stored of its inputs), F(0) is exact, F(1) is what was stored,
// and
//
//     E = F(1) - F(0) = sum over ops of the integral over t of dF/d(op) introduced(op)
//
// whose parts along E are added up: <E, E> = sum of parts. What was not recorded has no error of
// its own: it counts at the next op that was.
struct SharedError {
  std::string trouble;        // why there is nothing to share out; empty: there is
  double squares = 0;         // <E, E>
  int64_t elements = 0;       // of the logits
  std::vector<double> parts;  // <E, what the op causes>, by ErrorSharer::places()
  int steps = 0;              // values of t that were taken
};

class ErrorSharer {
 public:
  virtual ~ErrorSharer() = default;
  // All ops that can have an error, in the order of the computation.
  virtual const std::vector<Place>& places() const = 0;
  // Takes more values of t until the parts come within a hundredth of <E, E> together, 16 at most.
  // `parts` is in the order of places(); `squares` and `parts` of several texts may be added up.
  virtual SharedError share_out(const RecordedText& text) = 0;
  // <E, F'- F(0)>, with the error of one op alone in F': of each of those places.
  virtual std::vector<double> alone(const RecordedText& text, const std::vector<Place>& ops) = 0;
};

}  // namespace lockstep
