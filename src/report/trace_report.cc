#include "src/report/trace_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

#include "kernels/base/check.h"
#include "probes/digest.h"

namespace lockstep {
namespace {

// Most numbers that --values prints: more would fill the memory before the screen.
constexpr size_t kMostValues = 1'000'000;
constexpr size_t kLargest = 10;

Cell layer_cell(int layer) {
  return layer < 0 ? Cell(std::string("-")) : Cell(static_cast<int64_t>(layer));
}

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

// The sums over all tensors of one place.
struct PlaceTotal {
  Digest digest;  // counts, range and sums only
  bool hashes_alone = false;
  DType dtype = DType::f32;
  int layer = -1;
  const Point* point = nullptr;
  int64_t tensors = 0, rows = 0;

  void add(const RecordedTensor& tensor) {
    const Digest& d = tensor.digest;
    if (d.finite() > 0) {
      const bool first = digest.finite() == 0;
      digest.min = first ? d.min : std::min(digest.min, d.min);
      digest.max = first ? d.max : std::max(digest.max, d.max);
    }
    hashes_alone = hashes_alone || !d.has_numbers();
    digest.count += d.count;
    digest.nan += d.nan;
    digest.pos_inf += d.pos_inf;
    digest.neg_inf += d.neg_inf;
    digest.zeros += d.zeros;
    digest.sum_squares += d.sum_squares;
    dtype = tensor.dtype;
    layer = tensor.layer;
    point = tensor.point;
    ++tensors;
    rows += static_cast<int64_t>(tensor.rows.size());
  }
};

Table with_digest_columns(std::vector<Column> columns) {
  for (const char* name : {"rms", "min", "max", "nan", "inf", "zeros"}) columns.push_back(name);
  return {std::move(columns), {}};
}

void append_digest(const Digest& d, std::vector<Cell>& row) {
  if (!d.has_numbers()) {
    row.insert(row.end(), 6, Cell(std::string("-")));
    return;
  }
  for (const double number : {d.rms(), d.min, d.max}) row.push_back(number);
  for (const int64_t count : {d.nan, d.pos_inf + d.neg_inf, d.zeros}) row.push_back(count);
}

// One line a place, in graph order.
Table table_of_places(TraceReader& trace) {
  std::map<std::pair<int, int>, PlaceTotal> places;
  const int layers = trace.manifest().graph.layers();
  for (int i = 0; i < trace.passes(); ++i) {
    const Pass pass = trace.read(i, /*data=*/false);
    for (const RecordedTensor& t : pass.tensors) {
      const int order = order_of(*t.point);
      const bool first = order < order_of(point("attn.norm"));  // before all layers
      const int group = t.point->per_layer ? t.layer : first ? -1 : layers;
      places[{group, order}].add(t);
    }
  }
  Table table = with_digest_columns({"layer", "point", "dtype", "tensors", "rows"});
  for (const auto& [key, place] : places) {
    auto& row = table.rows.emplace_back();
    row = {layer_cell(place.layer), std::string(place.point->name),
           std::string(name_of(place.dtype)), place.tensors, place.rows};
    append_digest(place.hashes_alone ? digest_of_rows({}, 0) : place.digest, row);
  }
  return table;
}

struct Element {
  double value = 0;
  std::vector<Cell> cells;  // where it stands, and the value
};

// The selected rows, gathered in one reading of the trace.
struct Selected {
  Table tensors = with_digest_columns({"pass", "layer", "point", "rows", "shape", "dtype"});
  Table values{{"pass", "layer", "point", "request", "position", "index", "value"}, {}, "{:.9g}"};
  std::array<int64_t, 256> exponents{};  // of whole tensors, as Digest counts them
  std::vector<Element> largest;          // descending by magnitude, NaN before everything
  int64_t kept = 0;                      // tensors whose numbers are in the trace
  int64_t hashes_alone = 0;              // tensors whose digests have no numbers
};

std::string index_text(const Shape& shape, int64_t in_row) {
  std::vector<int64_t> index;
  for (int axis = shape.rank() - 1; axis > 0; --axis) {
    index.insert(index.begin(), in_row % shape[axis]);
    in_row /= shape[axis];
  }
  return fmt::format("[{}]", fmt::join(index, ", "));
}

void keep_if_large(std::vector<Element>& largest, double value, const auto& cells) {
  const auto magnitude = [](double x) { return std::isnan(x) ? HUGE_VAL : std::abs(x); };
  if (largest.size() == kLargest && magnitude(value) <= magnitude(largest.back().value)) return;
  const auto place =
      std::ranges::upper_bound(largest, magnitude(value), std::greater{},
                               [&](const Element& element) { return magnitude(element.value); });
  largest.insert(place, {value, cells()});
  if (largest.size() > kLargest) largest.pop_back();
}

// The elements of the selected rows of one tensor.
void add_elements(int pass, const RecordedTensor& t, const InspectOptions& options,
                  const Selection& selection, Selected& out) {
  const TensorView data = t.data.view();
  for (size_t r = 0; r < t.rows.size(); ++r) {
    if (!selection.has(t.rows[r])) continue;
    const int64_t first = static_cast<int64_t>(r) * data.row_size();
    for (int64_t i = 0; i < data.row_size(); ++i) {
      const double value = value_at(data, first + i);
      const auto cells = [&]() -> std::vector<Cell> {
        return {int64_t{pass},
                layer_cell(t.layer),
                std::string(t.point->name),
                int64_t{t.rows[r].request},
                int64_t{t.rows[r].position},
                index_text(data.shape, i),
                value};
      };
      keep_if_large(out.largest, value, cells);
      if (!options.values) continue;
      check(out.values.rows.size() < kMostValues,
            "--values would print more than {} numbers: narrow it with --positions or --points",
            kMostValues);
      out.values.rows.push_back(cells());
    }
  }
}

Selected select(TraceReader& trace, const InspectOptions& options) {
  const Selection selection = options.selection();
  selection.check_layers(trace.manifest().graph.layers());
  const auto has_row = [&](const Row& row) { return selection.has(row); };
  Selected out;
  for (int i = 0; i < trace.passes(); ++i) {
    const Pass pass = trace.read(i, /*data=*/true);
    for (const RecordedTensor& t : pass.tensors) {
      if (!options.has(t) || !selection.has(*t.point, t.layer)) continue;
      if (std::ranges::none_of(t.rows, has_row)) continue;
      auto& row = out.tensors.rows.emplace_back();
      row = {int64_t{pass.info.pass}, layer_cell(t.layer), std::string(t.point->name),
             rows_text(t.rows),       t.shape.text(),      std::string(name_of(t.dtype))};
      append_digest(t.digest, row);
      for (size_t bin = 0; bin < out.exponents.size(); ++bin)
        out.exponents[bin] += t.digest.exponents[bin];
      if (!t.digest.has_numbers()) ++out.hashes_alone;
      if (t.data.view().empty()) continue;
      ++out.kept;
      add_elements(pass.info.pass, t, options, selection, out);
    }
  }
  check(!out.tensors.rows.empty(),
        "nothing in {} is selected by {}: `lockstep inspect {}` says what there is", options.path,
        selection.text(), options.path);
  check(!options.values || out.kept > 0,
        "{} has only digests of what is selected, no numbers: record it with --keep full",
        options.path);
  return out;
}

// How many magnitudes there are of each power of two from the smallest to the largest that occurs.
// Bin 0 holds zeros and fp32's subnormals, which have no exponent of their own.
Bars bars_of(const std::array<int64_t, 256>& exponents) {
  const auto used = [](int64_t count) { return count > 0; };
  const auto first = std::find_if(exponents.begin() + 1, exponents.end(), used);
  const auto last = std::find_if(exponents.rbegin(), exponents.rend() - 1, used).base();
  Bars bars{{{"tiny", exponents[0]}}};
  for (auto bin = first; bin < last; ++bin)
    bars.counts.emplace_back(fmt::format("2^{}", bin - exponents.begin() - 127), *bin);
  return bars;
}

void add_histogram(const Selected& selected, std::vector<Block>& blocks) {
  const auto tensors = std::ssize(selected.tensors.rows);
  if (selected.hashes_alone > 0) {
    blocks.push_back(Heading{});
    blocks.push_back(Paragraph{fmt::format("of {} of {} tensors the digests are hashes alone",
                                           selected.hashes_alone, tensors)});
  }
  if (selected.hashes_alone == tensors) return;
  blocks.push_back(Heading{"magnitudes, of the whole tensors:"});
  blocks.push_back(bars_of(selected.exponents));
}

void add_largest(const Selected& selected, std::vector<Block>& blocks) {
  if (selected.largest.empty()) {
    blocks.push_back(Heading{});
    blocks.push_back(Paragraph{"the trace has digests of these tensors, no numbers"});
    return;
  }
  blocks.push_back(Heading{
      fmt::format("the {} largest numbers of the selected rows:", selected.largest.size())});
  Table table{selected.values.columns, {}, selected.values.number_format};
  for (const Element& element : selected.largest) table.rows.push_back(element.cells);
  blocks.push_back(std::move(table));
}

void add_origin(const Manifest& manifest, std::vector<Block>& blocks) {
  KeyValues origin{{manifest.provenance.begin(), manifest.provenance.end()}};
  origin.entries.emplace_back(
      "trace", fmt::format("{}, keeps {}{}{}", name_of(manifest.dtype), name_of(manifest.level),
                           manifest.selection.empty() ? "" : ", ", manifest.selection));
  blocks.push_back(std::move(origin));
  blocks.push_back(Heading{});
  for (const RequestInfo& r : manifest.requests)
    blocks.push_back(
        Paragraph{fmt::format("request {}{}: {} tokens in, {} out{}", r.id,
                              r.name.empty() ? "" : fmt::format(" ({})", r.name), r.prompt.size(),
                              r.tokens.size(), r.forced.empty() ? "" : ", forced")});
  blocks.push_back(Heading{});
}

// The last line says whether the trace is whole.
void add_ending(const TraceReader& trace, std::vector<Block>& blocks) {
  blocks.push_back(Heading{});
  for (const std::string& problem : trace.problems()) blocks.push_back(Paragraph{problem});
  blocks.push_back(Conclusion{trace.complete() ? "complete" : "incomplete",
                              fmt::format("{} passes", trace.passes())});
}

}  // namespace

Document inspect(TraceReader& trace, const InspectOptions& options) {
  Document document;
  std::vector<Block>& blocks = document.blocks;
  if (!options.selects() && !options.values) {
    add_origin(trace.manifest(), blocks);
    blocks.push_back(table_of_places(trace));
  } else if (options.values) {
    blocks.push_back(select(trace, options).values);
  } else {
    const Selected selected = select(trace, options);
    blocks.push_back(selected.tensors);
    add_histogram(selected, blocks);
    add_largest(selected, blocks);
  }
  add_ending(trace, blocks);
  return document;
}

}  // namespace lockstep
