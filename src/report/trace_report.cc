// `lockstep inspect`: the options ask one question about a trace (its passes, its provenance,
// another trace, some numbers), and without one it is told in an overview. Every answer ends with
// whether the trace is whole.
#include "src/report/trace_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "kernels/base/check.h"
#include "probes/digest.h"
#include "src/report/npy.h"
#include "src/report/output.h"
#include "src/report/trace_overview.h"
#include "src/report/trace_selection.h"
#include "traces/rope_pairs.h"

namespace lockstep {
namespace {

// One line a place, in graph order.
Table table_of_places(const TraceTotals& totals) {
  Table table = with_digest_columns({"layer", "point", "dtype", "tensors", "rows"});
  for (const TraceTotals::PlaceTotal& total : totals.places) {
    auto& row = table.rows.emplace_back();
    row = {total.place.layer < 0 ? Cell(std::string("-")) : Cell(int64_t{total.place.layer}),
           std::string(total.place.point->name), std::string(name_of(total.dtype)), total.tensors,
           total.rows};
    append_digest(total.hashes_alone ? digest_of_rows({}, 0) : total.digest, row);
  }
  return table;
}

// One array needs one shape: rows of one place.
void save(const Selected& selected, const InspectOptions& options, std::vector<Block>& blocks) {
  check(selected.places.size() == 1,
        "--npy takes the numbers of one place, and {} are selected: choose with --point and "
        "--layer",
        selected.places.size());
  std::vector<int64_t> shape = selected.row_extents;
  shape.insert(shape.begin(), selected.rows);
  write_file(options.npy, npy_of(selected.numbers, shape));
  blocks.push_back(Heading{});
  blocks.push_back(
      Paragraph{fmt::format("{}: float32 [{}] written", options.npy, fmt::join(shape, ", "))});
}

// The last line says whether the trace is whole.
void add_ending(const TraceReader& trace, std::vector<Block>& blocks) {
  blocks.push_back(Heading{});
  for (const std::string& problem : trace.problems()) blocks.push_back(Paragraph{problem});
  blocks.push_back(Conclusion{trace.complete() ? "complete" : "incomplete",
                              fmt::format("{} passes", trace.passes())});
}

void add_selected(TraceReader& trace, const InspectOptions& options, std::vector<Block>& blocks) {
  const Selected selected = select(trace, options);
  if (options.values)
    blocks.push_back(selected.values);
  else
    blocks = blocks_of(selected, options);
  if (!options.npy.empty()) save(selected, options, blocks);
}

// Elements are compared with their like, so that pairs have to lie in one order.
void add_another(TraceReader& trace, const InspectOptions& options, Inspected& inspected) {
  const std::unique_ptr<TraceReader> other = open_trace(options.against);
  const AlikePairs alike(trace, *other);
  Comparison compared = compared_with(alike.b(), alike.a(), options);
  inspected.document.blocks = std::move(compared.blocks);
  std::vector<Block>& blocks = inspected.document.blocks;
  if (const std::string pairs = alike.sentence(); !pairs.empty())
    blocks.push_back(Paragraph{pairs});
  for (const std::string& problem : other->problems())
    blocks.push_back(Paragraph{fmt::format("{}: {}", options.against, problem)});
  inspected.whole = inspected.whole && other->complete();
  inspected.differs = compared.differs;
  inspected.compared_all = compared.of_hashes == 0;
}

void add_whole(TraceReader& trace, const InspectOptions& options, Document& document) {
  const TraceTotals totals = totals_of(trace);
  document.blocks = overview_of(trace, totals, options.path);
  document.data = table_of_places(totals);
}

}  // namespace

// One question at a time, the most particular option first; an overview when none asks.
Inspected inspect(TraceReader& trace, const InspectOptions& options) {
  Inspected inspected{.document = {}, .whole = trace.complete()};
  Document& document = inspected.document;
  std::vector<Block>& blocks = document.blocks;
  const auto& provenance = trace.manifest().provenance;
  if (options.passes)
    blocks.push_back(passes_of(trace));
  else if (options.provenance)
    blocks.push_back(KeyValues{{provenance.begin(), provenance.end()}});
  else if (!options.against.empty())
    add_another(trace, options, inspected);
  else if (options.selects() || options.values || !options.npy.empty())
    add_selected(trace, options, blocks);
  else
    add_whole(trace, options, document);
  add_ending(trace, blocks);
  return inspected;
}

int exit_status(const Inspected& inspected) {
  if (!inspected.whole) return 2;
  if (inspected.differs) return 1;
  return inspected.compared_all ? 0 : 2;
}

}  // namespace lockstep
