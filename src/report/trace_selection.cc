// Reads what `inspect` was asked for, pass by pass: the digests of all passes are looked at,
// tensors are read of those passes alone in which something is selected. Of the numbers themselves
// only sums are kept (exponents, squares by head, the ten largest), unless --values or --npy ask
// for all.
#include "src/report/trace_selection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/base/check.h"
#include "probes/digest.h"
#include "src/report/element_filter.h"
#include "src/report/trace_picture.h"

namespace lockstep {
namespace {

// Most numbers that --values prints: more would fill the memory before the screen.
constexpr size_t kMostValues = 1'000'000;
constexpr size_t kLargest = 10;

Cell layer_cell(int layer) { return layer < 0 ? Cell(std::string("-")) : Cell(int64_t{layer}); }

// "0:3-7 1:0": request and positions of rows, runs joined.
std::string rows_text(const std::vector<Row>& rows) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < rows.size();) {
    size_t end = i + 1;
    while (end < rows.size() && rows[end].request == rows[i].request &&
           rows[end].position == rows[end - 1].position + 1)
      ++end;
    const std::string first = fmt::format("{}:{}", rows[i].request, rows[i].position);
    runs.push_back(end == i + 1 ? first : fmt::format("{}-{}", first, rows[end - 1].position));
    i = end;
  }
  return fmt::format("{}", fmt::join(runs, " "));
}

// Keeps the ten largest magnitudes, in their order; NaN counts as larger than any. The cells are
// made only for what is kept.
void keep_if_large(std::vector<Selected::LargeElement>& largest, double value, const auto& cells) {
  const auto magnitude = [](double x) {
    return std::isnan(x) ? std::numeric_limits<double>::infinity() : std::fabs(x);
  };
  if (largest.size() == kLargest && magnitude(value) <= magnitude(largest.back().value)) return;
  const auto place = std::ranges::upper_bound(
      largest, magnitude(value), std::greater{},
      [&](const Selected::LargeElement& element) { return magnitude(element.value); });
  largest.insert(place, {value, cells()});
  if (largest.size() > kLargest) largest.pop_back();
}

// The bin of a number as Digest counts it.
size_t exponent_bin(double value) {
  if (value == 0) return 0;
  return std::clamp(std::ilogb(value) + 127, 0, 255);
}

// Gathers what the options select of one tensor after another.
class Gatherer {
 public:
  Gatherer(const InspectOptions& options, Selected& out)
      : options_(options), filter_(options.heads, options.slice), out_(out) {}

  void add(int32_t pass, const RecordedTensor& t, const Selection& selection) {
    const TensorView data = t.data.view();
    const std::vector<int64_t> offsets = filter_.offsets(t);
    out_.row_extents = filter_.extents(t);
    for (size_t r = 0; r < t.rows.size(); ++r) {
      if (!selection.has(t.rows[r]) || !filter_.has(t.rows[r])) continue;
      ++out_.rows;
      for (const int64_t i : offsets) {
        const double value = value_at(data, r * data.row_size() + i);
        count(t, t.rows[r], i, value);
        keep(pass, t, t.rows[r], i, value);
      }
    }
  }
  bool has(const Row& row) const { return filter_.has(row); }

 private:
  void count(const RecordedTensor& t, const Row& row, int64_t i, double value) {
    if (std::isfinite(value))
      ++out_.exponents[exponent_bin(value)];
    else
      ++(std::isnan(value) ? out_.nan : out_.inf);
    // A share without a key has no size; its logarithm is -Inf.
    const bool empty = t.point->op == OpKind::log_sum_exp && std::isinf(value) && value < 0;
    const int axis = t.point->head_axis;
    int64_t inner = 1;
    for (int a = t.shape.rank() - 1; a > axis && axis > 0; --a) inner *= t.shape[a];
    auto& sums = out_.heads[{row.request, row.position}];
    const size_t head = axis > 0 ? i / inner % t.shape[axis] : 0;
    if (sums.size() <= head) sums.resize(head + 1);
    Selected::HeadSum& sum = sums[head];
    if (!empty) ++sum.elements;
    if (std::isfinite(value))
      sum.squares += value * value;
    else if (!empty)
      ++sum.nonfinite;
    if (!options_.npy.empty()) out_.numbers.push_back(static_cast<float>(value));
  }

  void keep(int32_t pass, const RecordedTensor& t, const Row& row, int64_t i, double value) {
    const auto cells = [&]() -> std::vector<Cell> {
      return {int64_t{pass},
              layer_cell(t.layer),
              std::string(t.point->name),
              int64_t{row.request},
              int64_t{row.position},
              index_text(t.shape, i),
              value};
    };
    keep_if_large(out_.largest, value, cells);
    if (!options_.values) return;
    check(out_.values.rows.size() < kMostValues,
          "--values would print more than {} numbers: narrow it with --position or --point",
          kMostValues);
    out_.values.rows.push_back(cells());
  }

  const InspectOptions& options_;
  ElementFilter filter_;
  Selected& out_;
};

// How many magnitudes there are of each power of two from the smallest to the largest that occurs.
// Bin 0 holds zeros and fp32's subnormals, which have no exponent of their own.
Bars bars_of(const Selected& selected) {
  const auto used = [](int64_t count) { return count > 0; };
  const auto& exponents = selected.exponents;
  const auto first = std::find_if(exponents.begin() + 1, exponents.end(), used);
  const auto last = std::find_if(exponents.rbegin(), exponents.rend() - 1, used).base();
  Bars bars{{{"tiny", exponents[0]}}};
  for (auto bin = first; bin < last; ++bin)
    bars.counts.emplace_back(fmt::format("2^{}", bin - exponents.begin() - 127), *bin);
  if (selected.nan > 0) bars.counts.emplace_back("nan", selected.nan);
  if (selected.inf > 0) bars.counts.emplace_back("inf", selected.inf);
  return bars;
}

// The table of the largest numbers, with where each stands.
void add_largest(const Selected& selected, std::vector<Block>& blocks) {
  blocks.push_back(Heading{
      fmt::format("the {} largest numbers of the selected rows:", selected.largest.size())});
  Table table{selected.values.columns, {}, selected.values.number_format};
  for (const Selected::LargeElement& element : selected.largest)
    table.rows.push_back(element.cells);
  blocks.push_back(std::move(table));
}

}  // namespace

// Without the first axis: the row is named by request and position.
std::string index_text(const Shape& shape, int64_t in_row) {
  std::vector<int64_t> index;
  for (int axis = shape.rank() - 1; axis > 0; --axis) {
    index.insert(index.begin(), in_row % shape[axis]);
    in_row /= shape[axis];
  }
  return fmt::format("[{}]", fmt::join(index, ", "));
}

Table with_digest_columns(std::vector<Table::Column> columns) {
  for (const char* name : {"rms", "min", "max", "nan", "inf", "zeros"}) columns.push_back(name);
  return {std::move(columns), {}};
}

void append_digest(const Digest& d, std::vector<Cell>& row) {
  if (!d.has_numbers()) {
    row.insert(row.end(), 6, Cell(std::string("-")));
    return;
  }
  // Where nothing is finite there is no size, and 0 would be one.
  for (const double number : {d.rms(), d.min, d.max})
    row.push_back(d.finite() > 0 ? Cell(number) : Cell(std::string("-")));
  for (const int64_t count : {d.nan, d.pos_inf + d.neg_inf, d.zeros}) row.push_back(count);
}

// Read twice as in trace_against.cc; that nothing is selected is an error, for an empty table looks
// like an answer.
Selected select(TraceReader& trace, const InspectOptions& options) {
  const Selection selection = options.selection();
  // A bare trace knows no layers of its model but those that it shows: of others it has nothing.
  if (trace.manifest().graph_known) selection.check_layers(trace.manifest().graph.layers());
  Selected out;
  out.tensors = with_digest_columns({"pass", "layer", "point", "rows", "shape", "dtype"});
  Gatherer gatherer(options, out);
  const auto is_wanted = [&](const RecordedTensor& t) {
    return options.has(t) && selection.has(*t.point, t.layer) &&
           std::ranges::any_of(
               t.rows, [&](const Row& row) { return selection.has(row) && gatherer.has(row); });
  };
  for (int i = 0; i < trace.passes(); ++i) {
    const bool any = std::ranges::any_of(trace.read(i, /*data=*/false).tensors, is_wanted);
    const Pass pass = any ? trace.read(i, /*data=*/true) : Pass{};
    for (const RecordedTensor& t : pass.tensors) {
      if (!is_wanted(t)) continue;
      auto& row = out.tensors.rows.emplace_back();
      row = {int64_t{pass.info.pass}, layer_cell(t.layer), std::string(t.point->name),
             rows_text(t.rows),       t.shape.text(),      std::string(name_of(t.dtype))};
      append_digest(t.digest, row);
      if (std::ranges::count(out.places, Place{t.point, t.layer}) == 0)
        out.places.push_back({t.point, t.layer});
      if (!t.digest.has_numbers()) ++out.hashes_alone;
      if (t.data.view().empty()) continue;
      ++out.kept;
      gatherer.add(pass.info.pass, t, selection);
    }
  }
  check(!out.tensors.rows.empty(),
        "nothing in {} is selected by {}: `lockstep inspect {}` says what there is", options.path,
        selection.text() + (options.slice.empty() ? "" : fmt::format(" --slice {}", options.slice)),
        options.path);
  const bool lacks_numbers = (options.values || !options.npy.empty()) && out.kept == 0;
  const auto is_cache = [](const Place& place) { return place.point->is_cache(); };
  check(!lacks_numbers || !std::ranges::all_of(out.places, is_cache),
        "{} keeps the cache as hashes of its rows, no numbers: select attn.k_rope or attn.v, which "
        "are written into it",
        options.path);
  check(!lacks_numbers,
        "{} has only digests of what is selected, no numbers: record it with --keep full",
        options.path);
  return out;
}

std::vector<Block> blocks_of(const Selected& selected, const InspectOptions& options) {
  std::vector<Block> blocks{selected.tensors};
  const auto tensors = std::ssize(selected.tensors.rows);
  if (selected.hashes_alone > 0) {
    blocks.push_back(Heading{});
    blocks.push_back(Paragraph{fmt::format("of {} of {} tensors the digests are hashes alone",
                                           selected.hashes_alone, tensors)});
  }
  if (selected.kept == 0) {
    blocks.push_back(Heading{});
    blocks.push_back(Paragraph{"the trace has digests of these tensors, no numbers"});
    return blocks;
  }
  if (selected.places.size() == 1) {
    std::vector<Block> picture = picture_of(selected, options.width);
    std::ranges::move(picture, std::back_inserter(blocks));
  }
  blocks.push_back(Heading{"magnitudes of the selected numbers:"});
  blocks.push_back(bars_of(selected));
  add_largest(selected, blocks);
  return blocks;
}

}  // namespace lockstep
