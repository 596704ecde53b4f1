// The selected part of a trace, number by number.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "src/report/document.h"
#include "src/report/trace_report.h"

namespace lockstep {

// Everything that one reading of the trace gathers.
struct Selected {
  // Squares of the elements of one head of one row, added up.
  struct HeadSum {
    double squares = 0;
    int64_t elements = 0, nonfinite = 0;
  };

  // An element that is among the largest, and the cells that say where it stands and what it is.
  struct LargeElement {
    double value = 0;
    std::vector<Cell> cells;
  };

  Table tensors;  // a line each
  Table values{{"pass", "layer", "point", "request", "position", "index", "value"}, {}, "{:.9g}"};
  std::array<int64_t, 256> exponents{};  // of the selected numbers, as Digest counts them
  int64_t nan = 0, inf = 0;              // among them
  std::vector<LargeElement> largest;     // descending by magnitude, NaN before everything
  int64_t kept = 0;                      // tensors whose numbers are in the trace
  int64_t hashes_alone = 0;              // tensors whose digests have no numbers
  std::vector<Place> places;             // different ones
  // By request and position, of the tensors of the only place: a sum a head (one without heads).
  std::map<std::pair<int32_t, int32_t>, std::vector<HeadSum>> heads;
  std::vector<float> numbers;        // of --npy, in the order of the passes
  std::vector<int64_t> row_extents;  // of them
  int64_t rows = 0;                  // of them
};
// Throws Error when nothing is selected, or when numbers are wanted that the trace has not. Numbers
// are read a tensor at a time, and of them only sums and the largest are kept, but with --values or
// --npy.
Selected select(TraceReader& trace, const InspectOptions& options);

// The tensors, the picture, the magnitudes, the largest.
std::vector<Block> blocks_of(const Selected& selected, const InspectOptions& options);

// "[3, 17]": where in its row an element of a tensor stands.
std::string index_text(const Shape& shape, int64_t in_row);

// The columns of a digest, and its cells.
Table with_digest_columns(std::vector<Table::Column> columns);
void append_digest(const Digest& digest, std::vector<Cell>& row);

// The selected rows of two traces side by side: bits and differences by place, then the largest
// differences.
struct Comparison {
  std::vector<Block> blocks;
  bool differs = false;   // bits of a row that both have, or a row that one of them has not
  int64_t of_hashes = 0;  // rows that have no numbers to compare, of both traces together
};
// Throws Error when they have no row in common.
Comparison compared_with(TraceReader& other, TraceReader& trace, const InspectOptions& options);

}  // namespace lockstep
