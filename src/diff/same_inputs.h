#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "probes/graph.h"
#include "src/diff/diff.h"
#include "src/diff/diff_side.h"
#include "traces/trace.h"

namespace lockstep {

// The differences that two right ops may have of the same inputs, under one rounding contract and
// with sums in fp32. Each is the exact result, off by the op's arithmetic, and then rounded to 16
// bits: so an element is two roundings away at the most, and hardly any differs at all, as the
// arithmetic must carry it over the border between two numbers. How likely that is, is the
// arithmetic's error in units of an ulp. In fp32 arithmetic moves most elements, and this says
// nothing. Limits are shares of elements or rows, without a unit.
class SameInputs {
 public:
  // Rows of one place whose op read inputs of the same bits in both traces, and what of them
  // differs.
  struct Counts {
    int64_t rows = 0, rows_different = 0;
    int64_t elements = 0, different = 0;  // of rows whose numbers, or equal hashes, are known
    int64_t row_size = 0;
    void add(const Counts& other);
  };

  // The element of some rows that is furthest over what two roundings explain.
  struct Furthest {
    double excess = 0;               // |a - b| over its limit
    double relative = 0, limit = 0;  // beside the element, or its row's rms where that is larger
    int32_t position = 0;
  };

  // The rows of a node whose op read inputs of the same bits.
  struct Rows {
    Counts counts;
    Furthest furthest;
    int32_t first_position = 0;  // of the first that differs
    int64_t terms = 0;           // how many the op's sums have
  };

  // Places where both traces declare one contract that leaves the arithmetic to the kernel alone.
  SameInputs(const std::vector<Place>& places, const Manifest& a, const Manifest& b);

  bool comparable(size_t place) const { return comparable_[place]; }
  // Adds a row of each, which read the same; `input` is the tensor that the op multiplies or norms.
  void count(size_t place, const ShownRow& x, const ShownRow& y, const RecordedTensor& input,
             Rows& rows) const;
  // Enters what was counted at a node; returns the share that is too large, of it or of all nodes
  // of the place so far.
  std::optional<DiffResult::Node::Share> enter(size_t place, const Rows& of_node);

 private:
  void measure(size_t place, std::span<const double> a, std::span<const double> b, int32_t position,
               Rows& rows) const;
  std::optional<DiffResult::Node::Share> too_large(size_t place, const Counts& counts,
                                                   int64_t terms) const;

  std::vector<Place> places_;
  std::vector<bool> comparable_;
  DType dtype_;
  std::vector<Counts> counts_;  // by place
};

}  // namespace lockstep
