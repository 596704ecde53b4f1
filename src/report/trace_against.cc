// Selected tensors of one trace beside the same of another, element by element.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "kernels/base/check.h"
#include "src/judge/ledger.h"
#include "src/report/element_filter.h"
#include "src/report/trace_selection.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

constexpr size_t kLargestDifferences = 10;

// The numbers of a row by place and by which computation of it that is: a position may be computed
// again.
using RowKey = std::tuple<int, int, int32_t, int32_t, int>;  // point, layer, request, position, nth
struct SelectedRow {
  int32_t pass = 0;
  const Point* point = nullptr;
  Shape shape;
  std::vector<int64_t> offsets;
  std::vector<double> numbers;
};
struct Rows {
  std::map<RowKey, SelectedRow> with_numbers;
  std::map<std::pair<int, int>, int64_t> of_hashes;  // how many have no numbers, by point and layer
};

// Two reads of a pass, the first without numbers: most passes hold nothing that is wanted. A row
// that occurs twice (a prompt computed again) is told apart by its number.
Rows rows_of(TraceReader& trace, const InspectOptions& options) {
  const Selection selection = options.selection();
  const ElementFilter filter(options.heads, options.slice);
  Rows rows;
  const auto is_wanted = [&](const RecordedTensor& t) {
    return options.has(t) && !t.point->is_cache() && selection.has(*t.point, t.layer);
  };
  for (int i = 0; i < trace.passes(); ++i) {
    if (std::ranges::none_of(trace.read(i, /*data=*/false).tensors, is_wanted)) continue;
    const Pass pass = trace.read(i, /*data=*/true);
    for (const RecordedTensor& t : pass.tensors) {
      if (!is_wanted(t)) continue;
      const TensorView data = t.data.view();
      const std::vector<int64_t> offsets = filter.offsets(t);
      for (size_t r = 0; r < t.rows.size(); ++r) {
        const Row& row = t.rows[r];
        if (!selection.has(row) || !filter.has(row)) continue;
        if (data.empty()) {
          ++rows.of_hashes[{t.point->order(), t.layer}];
          continue;
        }
        SelectedRow selected{pass.info.pass, t.point, t.shape, offsets, {}};
        for (const int64_t offset : offsets)
          selected.numbers.push_back(value_at(data, r * data.row_size() + offset));
        RowKey key{t.point->order(), t.layer, row.request, row.position, 0};
        while (rows.with_numbers.contains(key)) ++std::get<4>(key);
        rows.with_numbers.emplace(key, std::move(selected));
      }
    }
  }
  return rows;
}

// One element of both traces, and how far they lie apart.
struct Difference {
  double size = 0;
  RowKey key;
  int64_t offset = 0;
  double a = 0, b = 0;
};

// The sums of one place over all rows.
struct PlaceDifference {
  int64_t rows = 0, equal = 0, alone = 0;
  double largest = 0, squares = 0;
  int64_t elements = 0, nonfinite = 0;
};

// Zeros of different signs are different bits, and all NaN count as one: their payload is not a
// result.
bool same_number(double a, double b) {
  return a == b ? std::signbit(a) == std::signbit(b) : std::isnan(a) && std::isnan(b);
}

// Adds one row that both have; keeps the largest differences sorted, those that are not finite
// first.
void compare(const RowKey& key, const SelectedRow& a, const SelectedRow& b, PlaceDifference& sum,
             std::vector<Difference>& largest) {
  ++sum.rows;
  sum.equal += std::ranges::equal(a.numbers, b.numbers, same_number) ? 1 : 0;
  for (size_t i = 0; i < a.numbers.size(); ++i) {
    if (same_number(a.numbers[i], b.numbers[i])) continue;
    const double size = std::fabs(a.numbers[i] - b.numbers[i]);
    if (std::isfinite(size)) {
      sum.largest = std::max(sum.largest, size);
      sum.squares += size * size;
    } else {
      ++sum.nonfinite;
    }
    const double rank = std::isfinite(size) ? size : HUGE_VAL;
    if (largest.size() == kLargestDifferences && rank <= largest.back().size) continue;
    const auto at = std::ranges::upper_bound(largest, rank, std::greater{}, &Difference::size);
    largest.insert(at, {rank, key, a.offsets[i], a.numbers[i], b.numbers[i]});
    if (largest.size() > kLargestDifferences) largest.pop_back();
  }
  sum.elements += std::ssize(a.numbers);
}

Table table_of(const std::map<std::pair<int, int>, PlaceDifference>& places) {
  Table table{{"layer", "point", "rows", "equal bits", "in one alone", "max |a-b|", "rms a-b",
               "not finite"},
              {}};
  for (const auto& [place, sum] : places)
    table.rows.push_back({place.second < 0 ? Cell(std::string("-")) : Cell(int64_t{place.second}),
                          std::string(kPoints[place.first].name), sum.rows, sum.equal, sum.alone,
                          sum.largest, root_mean(sum.squares, sum.elements), sum.nonfinite});
  return table;
}

void add_largest(const std::vector<Difference>& largest, const std::map<RowKey, SelectedRow>& a,
                 std::vector<Block>& blocks) {
  if (largest.empty()) return;
  blocks.push_back(Heading{fmt::format("the {} largest differences:", largest.size())});
  Table table{{"layer", "point", "request", "position", "index", "a", "b", "|a-b|"}, {}, "{:.9g}"};
  for (const Difference& d : largest) {
    const auto& [point, layer, request, position, nth] = d.key;
    table.rows.push_back({layer < 0 ? Cell(std::string("-")) : Cell(int64_t{layer}),
                          std::string(kPoints[point].name), int64_t{request}, int64_t{position},
                          index_text(a.at(d.key).shape, d.offset), d.a, d.b, std::fabs(d.a - d.b)});
  }
  blocks.push_back(std::move(table));
}

}  // namespace

// Rows meet by place, request and position, whatever pass they were in: chunks and batches of two
// runs differ. A row that one trace has alone is a difference, unless the other may have it without
// its numbers.
Comparison compared_with(TraceReader& other, TraceReader& trace, const InspectOptions& options) {
  const Rows in_a = rows_of(trace, options), in_b = rows_of(other, options);
  const auto &a = in_a.with_numbers, &b = in_b.with_numbers;
  Comparison compared;
  std::map<std::pair<int, int>, PlaceDifference> places;
  std::vector<Difference> largest;
  int64_t common = 0;
  for (const auto& [key, row] : a) {
    PlaceDifference& sum = places[{std::get<0>(key), std::get<1>(key)}];
    const auto at = b.find(key);
    // Offsets are equal where the shapes within a row are, so that elements are compared with their
    // like.
    if (at == b.end() || at->second.offsets != row.offsets) {
      ++sum.alone;
      continue;
    }
    ++common;
    compare(key, row, at->second, sum, largest);
  }
  for (const auto& [key, row] : b)
    if (!a.contains(key)) ++places[{std::get<0>(key), std::get<1>(key)}].alone;
  const bool of_hashes = !in_a.of_hashes.empty() || !in_b.of_hashes.empty();
  check(common > 0, "{} and {} have no row with numbers in common in what is selected: {}",
        options.path, options.against,
        of_hashes ? "both must have been recorded with --keep full" : "select rows that both have");
  for (const auto& [place, sum] : places) {
    const bool all = !in_a.of_hashes.contains(place) && !in_b.of_hashes.contains(place);
    compared.differs = compared.differs || sum.equal < sum.rows || (all && sum.alone > 0);
  }
  compared.blocks.emplace_back(table_of(places));
  add_largest(largest, a, compared.blocks);
  for (const auto* all : {&in_a.of_hashes, &in_b.of_hashes})
    for (const auto& [place, rows] : *all) compared.of_hashes += rows;
  if (compared.of_hashes > 0)
    compared.blocks.push_back(Paragraph{fmt::format(
        "not compared: {} selected rows of the two, whose numbers were not kept; record both with "
        "--keep full",
        compared.of_hashes)});
  return compared;
}

}  // namespace lockstep
