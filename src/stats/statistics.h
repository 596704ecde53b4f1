// How far a node is from the exact result, as numbers with limits.
//
// Non-finite elements are decided before any number is made and are in none of the sums.
//
// The path of one node's numbers, all in double:
//
//     rows of (got, want, limit B, variance V)  one row at a time, by several threads
//       -> not finite on either side: named and counted, in no sum (Measure::NonFinite)
//       -> T0, T1   each element against its bits or its budget
//       -> T2 .. T5 sums over all elements that count: scatter, misrounds, gain (moments.h)
//       -> T4       the same sums over slices: rows, pages, heads, columns
//       -> Measure of the node, and the rows that differ from all others into the place's PlacePool
//
// The room knows neither tensors of an engine nor points: it is tested as mathematics. A statistic
// passes by `value <= limit` alone, so a NaN never passes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/tensor.h"
#include "kernels/base/thread_pool.h"
#include "probes/points.h"
#include "src/stats/columns.h"
#include "src/stats/distant_rows.h"
#include "src/stats/error_profile.h"
#include "src/stats/moments.h"
#include "src/stats/row_loops.h"
#include "src/stats/shape_rule.h"

namespace lockstep {

// An element worth naming.
struct Element {
  int64_t position = 0;  // of its row
  int64_t offset = 0;    // in its row
  double want = 0, got = 0;
  double budgets = 0;  // |got - want| / B
  double of_row = 0;   // |got - want| / the root mean square of the row's exact results
};
// The same with `of_row`, in a row of that size: that root mean square.
Element beside_row(Element e, double size);

struct Measure {
  // How a non-finite element came about, gravest last.
  enum class NonFinite : uint8_t {
    none,
    expected,    // the exact result overflows the dtype and got is that Inf, or the largest number
    propagated,  // the exact result is not finite either: an input was not
    introduced,  // the exact result is a number or another Inf, or the op makes NaN of an Inf
  };

  int64_t elements = 0;
  int64_t excluded = 0;   // not finite on one side or both
  int64_t different = 0;  // got is not want rounded; for class exact: has other bits
  int64_t over = 0;       // elements with |eta| > B
  // Rows with elements that are over, of other bits where class exact, or not finite though the
  // exact result is: row i is the i-th that was added.
  std::vector<WrongRow> wrong;
  ErrorProfile errors;      // of the rows that Meter::Options::profiled asks for
  double sum_squares = 0;   // of eta = got - want
  double largest = 0;       // of got, by size, among what is finite
  double inner = 0;         // largest share of B beyond ulp/2 that an element used
  Element worst;            // largest |eta| / B; for class exact, of the elements that differ
  Element worst_scattered;  // the same in the slice that T4 names
  // The same among those that are not the exact result rounded, which T3 counts: of all, and in the
  // slice that T3 names. None where there are none.
  std::optional<Element> misrounded, misrounded_in_slice;
  NonFinite nonfinite = NonFinite::none;  // the gravest seen
  int64_t nonfinite_count = 0;            // of that kind
  Element nonfinite_at;                   // the first of that kind
  std::vector<Statistic> statistics;      // those that this node is held to: T0, or T1 .. T5
};

// One row of a node, all of one length. The other fields are those of its Budget, which see.
// Borrowed for the call.
struct RowNumbers {
  std::span<const double> got, want, limit, variance, shared, misround;
  double gain = 0;
  // The part of V that comes by the inputs of the op, as these were not seen. Empty: none.
  std::span<const double> carried = {};
  bool meets_borders = false;
  double usual_misround = std::numeric_limits<double>::infinity();    // Budget::usual_misround
  double misround_in_gain = std::numeric_limits<double>::infinity();  // Budget::misround_in_gain
};

// The rows whose errors are kept one by one (Measure::errors), which costs as much as to measure
// them.
enum class ProfiledRows : uint8_t { none, wrong, all };

// A slice of a node with its worst element, and the worst of those that are misrounded.
struct NodeSlice : Scatter {
  Element worst;
  std::optional<Element> misrounded_worst;

  // Adds elements whose worst ones these are.
  void add(const Scatter& some, const Element& their_worst,
           const std::optional<Element>& their_misrounded);
  // Adds a slice of a row of that size (Meter::Row::size), beside which its worst ones are put.
  void add(const NodeSlice& of_row, double row_size);
};

class PlacePool;

// Slices by what they are of, in its order. Rows come in the order of their positions but where
// requests follow each other, and a tree takes longer to find the end than a sum takes.
class SlicesByKey {
 public:
  void reserve(size_t slices) { slices_.reserve(slices); }
  NodeSlice& operator[](int64_t key);
  auto begin() const { return slices_.begin(); }
  auto end() const { return slices_.end(); }

 private:
  std::vector<std::pair<int64_t, NodeSlice>> slices_;
};

// Measures one node in one pass over its rows. measure() is const and may be called by several
// threads; add() and finish() by one.
class Meter {
 public:
  // The traits of a place that decide how its nodes are measured.
  struct Options {
    DType dtype = DType::bf16;
    NodeClass node_class = NodeClass::elementwise;
    Shape row_shape;        // the axes after the rows
    int64_t page_size = 0;  // 0: not known, no slices by page
    // RowNumbers::gain is what accumulators truncate: it makes results too small, never too large.
    bool truncates = false;
    // A weight that is below what fp32 can hold times Inf is NaN, where the exact result is Inf.
    bool may_lose_weights = false;
    // Whether the largest number may stand where the exact result overflows to Inf.
    bool may_saturate = true;
    // Whether RowNumbers::carried is one error in all rows of the node, and not one a row.
    bool rows_alike = false;
    ProfiledRows profiled = ProfiledRows::none;
  };

  struct Row;  // one that is measured

  // rows: how many will come. pool: where the rows go that all nodes of the place are measured by;
  // borrowed, or null.
  Meter(const Options& options, int64_t rows, PlacePool* pool = nullptr);

  // Adds rows in their order. What each comes to does not depend on the others, and several
  // threads may measure some at once. threads: what shares the adding; borrowed, may be null.
  void add(std::span<Row> rows, ThreadPool* threads);
  void add(int64_t position, const RowNumbers& row);
  // room: of a row that is over, to be used again.
  Row measure(int64_t position, const RowNumbers& row, WeighedRow room = {}) const;
  // The same of a row that was measured elsewhere, of an op with that Budget::gain.
  Row measure(int64_t position, const DistantRow& from, double gain,
              std::vector<NodeSlice> room = {}) const;
  // Adds rows whose elements are elsewhere; they are the ones of `elements` from `first` on.
  // Returns the numbers there of those that the pool takes: whoever adds the rows of several nodes
  // asks for their columns once, and adds them to the pool.
  std::vector<int64_t> add(std::span<Row> rows, const DistantRows& elements, size_t first,
                           ThreadPool* threads);
  // Whether every element is kept, so that it must be measured here.
  bool keeps_all() const { return options_.profiled == ProfiledRows::all; }
  Measure finish() const;

 private:
  // An element beside what the dtype makes of the exact result.
  struct Stored {
    Element element;
    double rounded, spacing;
    bool different;
  };

  static void take(const RowSums& sums, int64_t elements, Measure& measure);
  Stored stored(int64_t position, int64_t offset, const RowNumbers& row) const;
  // Whether both neighbours of the exact result are it rounded, and got is one of them.
  bool is_either(const Element& element, double rounded, const RowNumbers& row) const;
  // How a non-finite element came about; none: its numbers count.
  Measure::NonFinite kind_of(const Stored& stored, double limit) const;
  Measure::NonFinite kind_of_infinite(const Element& element) const;
  void exclude(Row& measured, const Element& element, Measure::NonFinite kind) const;
  void note_wrong(Row& measured, size_t element) const;
  ErrorProfile profile_of(int64_t position, const RowNumbers& row) const;
  void allow_gain(Row& measured, double gain) const;
  // T0 and T1.
  void compare(Row& measured, const Stored& stored, double limit) const;
  // T2 to T5.
  void weigh(Row& measured, const Stored& stored, const RowNumbers& row) const;
  // All of a row at once, where it is plain; or element by element.
  void measure_plain(Row& measured, const RowNumbers& row, const RowSums& sums,
                     const StoredRow& stored) const;
  void measure_elements(Row& measured, const RowNumbers& row, StoredRow& stored_row) const;
  void end_groups(Row& measured, const RowNumbers& row, const StoredRow& stored) const;
  void end_group(Row& measured, const GroupSums& group, const NodeSlice& worst) const;
  void merge(Row& row);
  // Columns are many, and not every meter measures.
  void begin_columns();
  // Adds all that is of whole rows; those whose columns are to be added, of the node and its pool.
  struct Added {
    std::vector<const Row*> distinct, pooled;
  };
  Added add_whole(std::span<Row> rows, ThreadPool* threads);
  // Those that no other row of the node equals.
  std::vector<const Row*> distinct_of(std::span<const Row> rows);
  void add_positions(std::span<const Row* const> rows);
  void add_head(size_t head, const Added& added);
  void add_columns(std::span<const Row* const> rows, std::span<const WeighedRow* const> pooled,
                   ThreadPool* threads);
  void keep_worst_of_columns(std::span<const Row> rows, size_t first,
                             const DistantColumns& columns);
  void keep_worst_of_columns(std::span<const Row* const> rows, size_t begin, size_t end);
  void add_worst_slices(Measure& measure) const;

  Options options_;
  int64_t row_size_;
  int64_t head_size_;  // elements of a head in a row; 0: the tensor has no heads
  double largest_;     // finite value of the dtype
  Measure measure_;
  int64_t rows_added_ = 0;
  bool any_worst_ = false;
  DistinctMoments moments_;
  PlacePool* pool_;
  SlicesByKey rows_, pages_;
  std::vector<NodeSlice> heads_;
  int64_t column_count_ = 0;  // 0: no column can be long enough
  ColumnSums columns_;
  struct WorstOfColumn {
    Element worst;
    std::optional<Element> misrounded;
  };
  std::vector<WorstOfColumn> worst_of_columns_;
  std::vector<float> most_of_columns_, most_misrounded_of_columns_;  // budgets of those; -1: none
};

struct Meter::Row {
  int64_t position = 0;
  uint64_t hash = 0;  // of what the row came to
  Measure measure;
  bool any_worst = false;
  Moments sum;
  WeighedRow elements;
  std::vector<NodeSlice> heads;
  double size = 0;  // root mean square of the exact results
};

// All rows of a place, whatever their pass and request, that differ from each other. From 4,096
// rows on it takes every second one, by its hash, and after each 512 more half as many: what it
// must remember to know a row again then grows as the logarithm of the run. For one thread.
class PlacePool {
 public:
  // Adds all that is of whole rows, and returns those whose heads and columns are to be added.
  std::vector<const Meter::Row*> add(std::span<const Meter::Row> rows);
  // The same with their heads and columns, by this thread. elsewhere: where the rows were measured,
  // the first ones of it in this order; null: here.
  void add_whole(std::span<const Meter::Row> rows, const DistantRows* elsewhere);
  // One head of those rows, which have it. Several threads may add different ones at once.
  void add_head(size_t head, std::span<const Meter::Row* const> rows);
  // Does as ColumnSums::add.
  void add_columns(std::span<const WeighedRow* const> rows, size_t begin, size_t end) {
    columns_.add(rows, begin, end);
  }
  void add_columns(const DistantColumns& columns) { columns_.add(columns); }
  const Moments& sum() const { return moments_.sum(); }
  // T2, T3, T5, and T4 over heads and columns.
  std::vector<Statistic> statistics(DType dtype) const;

 private:
  DistinctMoments moments_;
  int64_t enough_ = 2048;  // rows, at which fewer of the next ones are taken
  uint64_t passed_ = 0;    // bits of a row's hash, any of which leaves it out
  std::vector<Scatter> heads_;
  ColumnSums columns_;
};

}  // namespace lockstep
