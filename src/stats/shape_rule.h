// Where the wrong elements of a place lie, said as a rule about indices.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "probes/record.h"

namespace lockstep {

// A row with at least one wrong element.
struct WrongRow {
  int64_t row = 0;             // index among the rows
  std::vector<bool> elements;  // one an element of the row: true is wrong
};

struct WrongElements {
  struct Axis {
    std::string name;  // "head", "dim", "channel": what one index of it is
    int64_t size = 1;
    int64_t kv_heads = 0;  // of query heads that share K/V heads: how many of these; 0: do not
  };

  // A row of a place, among the rows that a run showed of it.
  struct PlacedRow {
    Row row;
    int32_t pass = 0;
    bool decode = false;
    bool continues = false;  // the pass takes the request up at a position after the first
    bool opens = false;      // of the first request of its pass
    bool first = false, last = false;  // of its request's rows in the pass
    // The members that follow may be unknown, and then no rule is about them.
    int64_t of_pass = -1;  // its number among the rows that the op has in the pass, of all requests
    int64_t pass_rows = 0;  // how many these are
    int32_t token = -1;     // the id that was fed there
    int64_t length = 0;     // positions of its request up to the last one of the pass
    // The expert, and the number of the choice, of an op with a row for each one that a token
    // chose.
    int32_t expert = -1, choice = -1;
    std::vector<int32_t> experts = {};  // of other ops of a layer with experts: all that it chose
  };

  std::vector<PlacedRow> rows = {};
  std::vector<Axis> axes = {};       // of a row, outermost first
  std::vector<WrongRow> wrong = {};  // ascending by row
  int64_t page_size = 0;             // 0: not known
};

struct ShapeRule {
  std::string where;     // "dims < 32, positions >= 1"
  double precision = 0;  // share of the elements there that are wrong
  double recall = 0;     // share of the wrong elements that lie there
};

// The simplest rule that tells wrong elements from right ones, a conjunction of predicates on
// single axes; nothing when none does so well enough. The same input gives the same rule.
//
// It is the shortest description (Rissanen 1978): wrong elements are described by the bits of the
// rule plus those that say which elements are wrong within and without, log2 of the number of
// choices. Noise has no description shorter than itself but for a chance of 2^-bits saved.
std::optional<ShapeRule> shape_rule(const WrongElements& elements);

}  // namespace lockstep
