// The passes of one file as columns: what the HDF5 writer writes and the reader reads, without
// HDF5.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "probes/recorder.h"

namespace lockstep {

// Everything about passes but the tensors' bytes. Members are named as the columns on disk
// (README.md); `..._edges` divide flat columns, start with 0 and end with their length. Members are
// flat and of the types on disk, so that one visitor writes and reads them all.
struct Columns {
  // How many entries a column has.
  enum class Per : uint8_t {
    pass,    // one a pass
    row,     // one a token row of a pass
    tensor,  // one a tensor
    table,   // one a page table
    logit,   // one a row of logits
    best,    // kTopLogits, or the vocabulary if that is less, a row of logits
    edge,    // one more than what it divides: entries [i], [i + 1] bound the part of i
    part,    // as the column of edges says
  };

  // passes/
  std::vector<int32_t> number;
  std::vector<int64_t> row_edges{0}, logit_row_edges{0}, table_edges{0}, tensor_edges{0};
  std::vector<int32_t> pass, request, position, token;
  std::vector<int64_t> slot;
  std::vector<uint8_t> phase;
  std::vector<int32_t> logit_rows;
  std::vector<int32_t> table_pass, table_request, pages;
  std::vector<int64_t> page_edges{0};
  // A trace that does not say who inherits has none of these on disk.
  std::vector<int64_t> inherited_edges{0}, inherited_token_edges{0};
  std::vector<int32_t> inherited_request, inherited_tokens;
  bool inherited_known = true;

  // index/
  struct Index {
    std::vector<int64_t> seq;
    std::vector<int32_t> pass, layer;
    std::vector<std::string> point, dtype, axes, path;  // path: "" when only the digest was kept
    std::vector<int64_t> shape, shape_edges{0};
    std::vector<uint64_t> xxh3;
    std::vector<int64_t> n, nan, posinf, neginf, zeros, subnormal, absmax_at;
    std::vector<double> min, max, absmax, mean, m2, rms, sum_abs, sum_squares;
    std::vector<uint8_t> exponent;  // of the occupied bins of Digest::exponents
    std::vector<uint32_t> exponent_count;
    std::vector<int64_t> exponent_edges{0};
    // Rows as runs: `run_count` consecutive positions of `run_request` from `run_first` on.
    std::vector<int32_t> run_request, run_first, run_count;
    std::vector<int64_t> run_edges{0};
    std::vector<uint64_t> row_xxh3;
    std::vector<int64_t> row_xxh3_edges{0};
  } index;

  // logits/
  struct Best {
    std::vector<int64_t> edges{0};  // by pass
    std::vector<int32_t> pass, request, position, chosen, ids;
    std::vector<double> values, margin;
  } logits;

  // Appends a pass; `seq` of its first tensor in the whole trace. Paths are made by path_of. Every
  // tensor must have its digest.
  void append(const Pass& pass, int64_t seq);
  // Pass i without data. Columns must be sound.
  Pass pass_at(size_t i) const;
  // Throws Error, naming `file`, unless lengths, edges, points and dtypes fit each other.
  // `bytes`: of the file.
  void check_sound(const std::string& file, int64_t bytes) const;
  size_t passes() const { return number.size(); }
};

// Where a kept tensor lies in an HDF5 trace: "/tensors/pass000000/layer000/attn.q", of no layer
// ".../model/embed", of the cache of one request ".../attn.kv.request000000".
std::string path_of(int32_t pass, const RecordedTensor& tensor);

// A pass's rows as runs of consecutive positions, and back; used by the journal too.
struct RowRun {
  int32_t request = 0, first = 0, count = 0;

  bool is_sound() const;  // whether its positions are below kMostPositions
  void append_to(std::vector<Row>& rows) const;
};
std::vector<RowRun> runs_of(std::span<const Row> rows);
// Throws Error when a tensor has none.
void check_has_digests(const Pass& pass);
// Whether those are extents of 0 and more whose bytes can be counted.
bool is_shape(std::span<const int64_t> extents);

inline constexpr const char* kTooManyRows =
    "have more rows than those of any file of its size: the file is damaged, write the trace anew";
// Bounds the memory that the rows of a file take: a run of many rows is a few bytes there.
class RowBudget {
 public:
  explicit RowBudget(int64_t bytes_of_file) : left_(kRowsPerByte * bytes_of_file) {}
  void add(int64_t bytes) { left_ += kRowsPerByte * bytes; }  // of the file
  bool take(int64_t rows);  // false when they are more than any file of that size has

 private:
  // A pass names its rows once for all of its tensors, of which a model has thousands.
  static constexpr int64_t kRowsPerByte = 64;
  int64_t left_;
};

// Where it is missing, so are the other columns of what is inherited.
inline constexpr const char* kInheritedEdges = "passes/inherited_edges";

// Under it are the columns of the index that have not one entry a tensor: a table of /index alone
// is one that any reader of tables takes. Version 2.0 had them in /index.
inline constexpr const char* kIndexParts = "index/parts";

// Those of the index alone.
template <typename I, typename Visit>
void visit_index(I& i, Visit visit) {
  visit("index/seq", i.seq, Columns::Per::tensor);
  visit("index/pass", i.pass, Columns::Per::tensor);
  visit("index/layer", i.layer, Columns::Per::tensor);
  visit("index/point", i.point, Columns::Per::tensor);
  visit("index/dtype", i.dtype, Columns::Per::tensor);
  visit("index/axes", i.axes, Columns::Per::tensor);
  visit("index/path", i.path, Columns::Per::tensor);
  visit("index/parts/shape", i.shape, Columns::Per::part);
  visit("index/parts/shape_edges", i.shape_edges, Columns::Per::edge);
  visit("index/xxh3", i.xxh3, Columns::Per::tensor);
  visit("index/n", i.n, Columns::Per::tensor);
  visit("index/nan", i.nan, Columns::Per::tensor);
  visit("index/posinf", i.posinf, Columns::Per::tensor);
  visit("index/neginf", i.neginf, Columns::Per::tensor);
  visit("index/zeros", i.zeros, Columns::Per::tensor);
  visit("index/subnormal", i.subnormal, Columns::Per::tensor);
  visit("index/min", i.min, Columns::Per::tensor);
  visit("index/max", i.max, Columns::Per::tensor);
  visit("index/absmax", i.absmax, Columns::Per::tensor);
  visit("index/absmax_at", i.absmax_at, Columns::Per::tensor);
  visit("index/mean", i.mean, Columns::Per::tensor);
  visit("index/m2", i.m2, Columns::Per::tensor);
  visit("index/rms", i.rms, Columns::Per::tensor);
  visit("index/sum_abs", i.sum_abs, Columns::Per::tensor);
  visit("index/sum_squares", i.sum_squares, Columns::Per::tensor);
  visit("index/parts/exponent", i.exponent, Columns::Per::part);
  visit("index/parts/exponent_count", i.exponent_count, Columns::Per::part);
  visit("index/parts/exponent_edges", i.exponent_edges, Columns::Per::edge);
  visit("index/parts/run_request", i.run_request, Columns::Per::part);
  visit("index/parts/run_first", i.run_first, Columns::Per::part);
  visit("index/parts/run_count", i.run_count, Columns::Per::part);
  visit("index/parts/run_edges", i.run_edges, Columns::Per::edge);
  visit("index/parts/row_xxh3", i.row_xxh3, Columns::Per::part);
  visit("index/parts/row_xxh3_edges", i.row_xxh3_edges, Columns::Per::edge);
}

// The one list of columns: visit(path, column, per) for each.
template <typename C, typename Visit>  // C: Columns or const Columns
void visit_columns(C& c, Visit visit) {
  visit("passes/number", c.number, Columns::Per::pass);
  visit("passes/row_edges", c.row_edges, Columns::Per::edge);
  visit("passes/logit_row_edges", c.logit_row_edges, Columns::Per::edge);
  visit("passes/table_edges", c.table_edges, Columns::Per::edge);
  visit("passes/tensor_edges", c.tensor_edges, Columns::Per::edge);
  visit("passes/pass", c.pass, Columns::Per::row);
  visit("passes/request", c.request, Columns::Per::row);
  visit("passes/position", c.position, Columns::Per::row);
  visit("passes/slot", c.slot, Columns::Per::row);
  visit("passes/phase", c.phase, Columns::Per::row);
  visit("passes/token", c.token, Columns::Per::row);
  visit("passes/logit_rows", c.logit_rows, Columns::Per::part);
  visit("passes/table_pass", c.table_pass, Columns::Per::table);
  visit("passes/table_request", c.table_request, Columns::Per::table);
  visit("passes/page_edges", c.page_edges, Columns::Per::edge);
  visit("passes/pages", c.pages, Columns::Per::part);
  if (c.inherited_known) {
    visit(kInheritedEdges, c.inherited_edges, Columns::Per::edge);
    visit("passes/inherited_request", c.inherited_request, Columns::Per::part);
    visit("passes/inherited_token_edges", c.inherited_token_edges, Columns::Per::edge);
    visit("passes/inherited_tokens", c.inherited_tokens, Columns::Per::part);
  }
  visit_index(c.index, visit);
  visit("logits/edges", c.logits.edges, Columns::Per::edge);
  visit("logits/pass", c.logits.pass, Columns::Per::logit);
  visit("logits/request", c.logits.request, Columns::Per::logit);
  visit("logits/position", c.logits.position, Columns::Per::logit);
  visit("logits/chosen", c.logits.chosen, Columns::Per::logit);
  visit("logits/margin", c.logits.margin, Columns::Per::logit);
  visit("logits/ids", c.logits.ids, Columns::Per::best);
  visit("logits/values", c.logits.values, Columns::Per::best);
}

}  // namespace lockstep
