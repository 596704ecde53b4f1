// The overview reads digests and no tensor, so that it is quick for a trace of any size: how many
// passes, requests and tokens there are, which places are held and how, the ranges and counts of
// each place over all passes, and the verdict that the trace keeps.
#include "src/report/trace_overview.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <span>

#include "kernels/base/check.h"
#include "kernels/files/json.h"
#include "probes/digest.h"
#include "src/judge/ledger.h"
#include "src/report/point_columns.h"
#include "src/screen/wrap.h"
#include "traces/kept_result.h"
#include "traces/run_facts.h"

namespace lockstep {
namespace {

constexpr size_t kNamedRequests = 12;  // of those that are named

// The slots of rows, runs joined: "0-15 64-70".
std::string slots_text(std::span<const PassRow> rows) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < rows.size();) {
    size_t end = i + 1;
    while (end < rows.size() && rows[end].slot == rows[end - 1].slot + 1) ++end;
    runs.push_back(end == i + 1 ? std::to_string(rows[i].slot)
                                : fmt::format("{}-{}", rows[i].slot, rows[end - 1].slot));
    i = end;
  }
  return fmt::format("{}", fmt::join(runs, " "));
}

// The digest of several tensors is that of their numbers together, as far as it can be had from
// theirs: sums, counts and extremes, no hash.
void add(const RecordedTensor& tensor, TraceTotals::PlaceTotal& total) {
  const Digest& d = tensor.digest;
  Digest& all = total.digest;
  // A tensor without a finite number has no extremes.
  if (d.finite() > 0) {
    const bool first = all.finite() == 0;
    all.min = first ? d.min : std::min(all.min, d.min);
    all.max = first ? d.max : std::max(all.max, d.max);
  }
  total.hashes_alone = total.hashes_alone || !d.has_numbers();
  all.count += d.count;
  all.nan += d.nan;
  all.pos_inf += d.pos_inf;
  all.neg_inf += d.neg_inf;
  all.zeros += d.zeros;
  all.sum_squares += d.sum_squares;
  total.dtype = tensor.dtype;
  ++total.tensors;
  total.rows += std::ssize(tensor.rows);
}

// The numbers that should be finite and are not: -Inf is the logarithm of a sum of nothing.
int64_t not_finite(const Point& point, const Digest& d) {
  const int64_t empty = point.op == OpKind::log_sum_exp ? d.neg_inf : 0;
  return d.count - d.finite() - empty;
}

std::string fact(const Manifest& manifest, const char* name) {
  const auto at = manifest.provenance.find(name);
  return at == manifest.provenance.end() ? "" : screen_text(at->second);
}

std::string size_text(const std::string& path) {
  std::error_code ignored;
  std::uintmax_t bytes = 0;
  if (std::filesystem::is_directory(path, ignored)) {
    for (const auto& entry : std::filesystem::directory_iterator(path, ignored))
      if (entry.is_regular_file(ignored)) bytes += entry.file_size(ignored);
  } else {
    bytes = std::filesystem::file_size(path, ignored);
    if (ignored) return "";
  }
  const auto size = static_cast<double>(bytes);
  if (size >= 1e9) return fmt::format("{:.3g} GB", size / 1e9);
  if (size >= 1e6) return fmt::format("{:.3g} MB", size / 1e6);
  return fmt::format("{:.3g} kB", size / 1e3);
}

// The verdict that the trace keeps, with the beginning of its story, which says the place. Of a
// trace of which something is gone since, it is none on what is left.
std::string judged_text(const std::string& path, bool complete) {
  const std::string kept = read_kept_result(path);
  if (kept.empty()) return "not judged";
  const JsonDocument result(
      kept, {"the result that " + path + " keeps", "judge the trace again", kept.size()});
  const std::string verdict = screen_text(result.root()["verdict"].text());
  const std::string story = screen_text(result.root()["story"].text());
  // A story's place stands before the first colon, its further clauses behind a semicolon.
  const size_t end =
      std::min(story.find(";"), verdict == "diverged" ? story.find(": ") : story.size());
  return fmt::format("{}: {} ({})", complete ? "judged" : "judged when it was whole", verdict,
                     story.substr(0, end));
}

// The line by which a trace is recognised.
std::string headline(const TraceReader& trace, const std::string& path) {
  const Manifest& m = trace.manifest();
  std::string text =
      fmt::format("{}  {}  {}  {}, keeps {}{}{}", screen_text(path),
                  trace.complete() ? "complete" : "incomplete", size_text(path), name_of(m.dtype),
                  name_of(m.level), m.selection.empty() ? "" : " of ", m.selection);
  return fmt::format("{}   {}", text, judged_text(path, trace.complete()));
}

// Which engine, model and machine it is of, as far as the trace says.
std::string origin_text(const Manifest& m) {
  std::vector<std::string> parts;
  const auto say = [&parts](const std::string& part) {
    if (!part.empty()) parts.push_back(part);
  };
  const std::string version = fact(m, "engine_version"), commit = fact(m, "git_sha");
  say(fact(m, "engine") + (version.empty() ? version : fmt::format(" {}", version)));
  say(std::filesystem::path(fact(m, "model")).filename().string());
  const std::string matmul = fact(m, kMatmulFact);
  say(fact(m, "device") +
      (matmul.empty() ? matmul : fmt::format(", {} matmul", matmul.substr(0, matmul.find(" (")))));
  if (const std::string size = fact(m, "page_size"); !size.empty())
    say(fmt::format("page size {}", size));
  say(fact(m, "created_utc"));
  if (!commit.empty()) say(fmt::format("commit {}", commit.substr(0, 7)));
  return fmt::format("{}", fmt::join(parts, "  "));
}

// "4 requests: 0 (first) 1210+6  1 1202+6   6 passes": tokens in and out. A bare trace names no
// requests, but its rows do.
std::string requests_text(TraceReader& trace) {
  const std::vector<RequestInfo>& requests = trace.manifest().requests;
  if (requests.empty()) {
    std::set<int32_t> seen;
    for (int i = 0; i < trace.passes(); ++i)
      for (const PassRow& r : trace.read(i, /*data=*/false).info.rows) seen.insert(r.row.request);
    return fmt::format("{} request{}   {} pass{}", seen.size(), seen.size() == 1 ? "" : "s",
                       trace.passes(), trace.passes() == 1 ? "" : "es");
  }
  std::string text = fmt::format("{} request{}:", requests.size(), requests.size() == 1 ? "" : "s");
  for (size_t i = 0; i < std::min(kNamedRequests, requests.size()); ++i) {
    const RequestInfo& r = requests[i];
    const std::string name = r.name.empty() ? "" : fmt::format(" ({})", screen_text(r.name));
    text += fmt::format(" {}{} {}+{}{} ", r.id, name, r.prompt.size(), r.tokens.size(),
                        r.forced.empty() ? "" : " forced");
  }
  if (requests.size() > kNamedRequests)
    text += fmt::format(" and {} more ", requests.size() - kNamedRequests);
  return text + fmt::format("  {} pass{}", trace.passes(), trace.passes() == 1 ? "" : "es");
}

// Whether the op had finite inputs. Everything that was computed before the first such tensor is
// finite as far as the trace has its numbers.
std::string inputs_text(const Graph& graph, const TraceTotals& totals) {
  std::vector<Place> inputs;
  for (const Place& input : graph.inputs_of(totals.first->place)) {
    const std::vector<Place> more =
        // The cache is written of k and v of the pass: they are what can be looked at.
        input.point->is_cache() ? graph.inputs_of(input) : std::vector<Place>{input};
    inputs.insert(inputs.end(), more.begin(), more.end());
  }
  std::vector<std::string_view> finite, unknown;
  for (const Place& input : inputs)
    (std::ranges::count(totals.recorded_with_numbers, input) > 0 ? finite : unknown)
        .push_back(input.point->name);
  std::string text;
  if (!finite.empty())
    text = fmt::format("; what it reads is finite ({})", fmt::join(finite, ", "));
  if (!unknown.empty())
    text +=
        fmt::format("; the trace has no numbers of {}, which it reads", fmt::join(unknown, ", "));
  return text;
}

std::string nonfinite_text(const TraceReader& trace, const TraceTotals& totals) {
  const TraceTotals::FirstNonFinite& f = *totals.first;
  return fmt::format("NOT FINITE: first in pass {}, {}: {} of {} NaN, {} Inf{}", f.pass,
                     text_of(f.place), f.nan, f.elements, f.inf,
                     inputs_text(trace.manifest().graph, totals));
}

std::string size_of_numbers(const TraceTotals::PlaceTotal& total) {
  if (total.hashes_alone) return "#";
  const Digest& d = total.digest;
  if (d.nan > 0) return "NaN";
  return not_finite(*total.place.point, d) > 0 ? "Inf" : number_in_four(d.rms());
}

// The rms of each layer and point: where the size of the stream jumps is seen at a glance.
void add_map(const TraceTotals& totals, std::vector<Block>& blocks) {
  std::vector<Place> places;
  for (const TraceTotals::PlaceTotal& total : totals.places) places.push_back(total.place);
  const std::vector<const Point*> columns = layer_columns(places);
  Table table{.columns = {{"rms", Table::Align::right, 5}}, .gap = 1};
  for (const Point* column : columns)
    table.columns.push_back(
        {std::string(column->column), Table::Align::right, columns.size() > 18 ? 1 : 3});
  std::map<int, std::vector<Cell>> rows;
  std::string others;
  for (const TraceTotals::PlaceTotal& total : totals.places) {
    const auto at =
        std::ranges::find_if(columns, [&](const Point* c) { return *c == *total.place.point; });
    if (total.place.layer < 0 || at == columns.end()) {
      others += fmt::format("{}{} {}", others.empty() ? "" : "   ", total.place.point->name,
                            size_of_numbers(total));
      continue;
    }
    auto& row = rows.try_emplace(total.place.layer, columns.size() + 1, Cell("")).first->second;
    row[0] = std::to_string(total.place.layer);
    row[(at - columns.begin()) + 1] = size_of_numbers(total);
  }
  for (auto& [layer, row] : rows) table.rows.push_back(std::move(row));
  if (!table.rows.empty()) blocks.push_back(std::move(table));
  if (!others.empty()) blocks.push_back(Paragraph{others, 6, 8});
  if (std::ranges::any_of(totals.places, &TraceTotals::PlaceTotal::hashes_alone))
    blocks.push_back(Paragraph{"# hashes alone, no numbers", 6, 8});
}

}  // namespace

// Columns of the map are narrow: "0.1" becomes ".1", and what does not fit is written by its
// exponent.
std::string number_in_four(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Inf" : "-Inf";
  const double size = std::fabs(value);
  if (size == 0) return "0";
  // Beyond these limits {:.2f} would round to nothing, and {:.0f} take four digits.
  if (size < 0.00995 || size >= 999.5) {
    std::string text = fmt::format("{:.0e}", value);  // "2e+04", "3e-05"
    const size_t e = text.find('e');
    const std::string digits = text.substr(text.find_first_not_of("+-0", e + 1));
    return fmt::format("{}e{}{}", text.substr(0, e), text[e + 1] == '-' ? "-" : "", digits);
  }
  std::string text = size >= 99.5    ? fmt::format("{:.0f}", value)
                     : size >= 9.95  ? fmt::format("{:.0f}", value)
                     : size >= 0.995 ? fmt::format("{:.1f}", value)
                                     : fmt::format("{:.2f}", value);
  if (const size_t zero = text.find("0."); zero != std::string::npos && size < 0.995)
    text.erase(zero, 1);
  return text;
}

// By digests alone, which every trace has: no numbers are read. Sorted as computed: what comes
// before the layers, the layers, what comes after.
TraceTotals totals_of(TraceReader& trace) {
  TraceTotals totals;
  std::map<std::pair<int, int>, TraceTotals::PlaceTotal> places;
  const int layers = trace.manifest().graph.layers();
  for (int i = 0; i < trace.passes(); ++i) {
    const Pass pass = trace.read(i, /*data=*/false);
    for (const RecordedTensor& t : pass.tensors) {
      const int order = t.point->order();
      const bool before = order < point("attn.norm").order();  // all layers
      const int group = t.point->per_layer ? t.layer : before ? -1 : layers;
      TraceTotals::PlaceTotal& total = places[{group, order}];
      total.place = {t.point, t.layer};
      add(t, total);
      const Digest& d = t.digest;
      // Tensors of a pass are in the order of the computation.
      if (!totals.first && d.has_numbers() && not_finite(*t.point, d) > 0)
        totals.first = TraceTotals::FirstNonFinite{pass.info.pass, total.place, d.nan,
                                                   d.pos_inf + d.neg_inf, d.count};
    }
  }
  for (auto& [key, total] : places) {
    if (!total.hashes_alone) totals.recorded_with_numbers.push_back(total.place);
    totals.places.push_back(total);
  }
  return totals;
}

std::vector<Block> overview_of(TraceReader& trace, const TraceTotals& totals,
                               const std::string& path) {
  std::vector<Block> blocks;
  blocks.push_back(Paragraph{headline(trace, path), 0, 2});
  if (const std::string origin = origin_text(trace.manifest()); !origin.empty())
    blocks.push_back(Paragraph{origin, 0, 2});
  blocks.push_back(Paragraph{requests_text(trace), 0, 2});
  if (totals.first) blocks.push_back(Paragraph{nonfinite_text(trace, totals), 0, 2, true});
  blocks.push_back(Heading{});
  add_map(totals, blocks);
  return blocks;
}

// A line for each request of each pass, with the arguments that kernels get of it.
Table passes_of(TraceReader& trace) {
  Table table{{"pass", "request", "positions", "phase", "pages", "slots", "cu_seqlens", "context"},
              {}};
  for (int i = 0; i < trace.passes(); ++i) {
    const PassInfo info = trace.read(i, /*data=*/false).info;
    int64_t edge = 0;
    for (size_t r = 0; r < info.rows.size();) {
      size_t end = r + 1;
      // Rows of a request stand together in a pass.
      while (end < info.rows.size() && info.rows[end].row.request == info.rows[r].row.request)
        ++end;
      const PassRow &first = info.rows[r], &last = info.rows[end - 1];
      const auto pages = std::ranges::find(info.pages, first.row.request, &RequestPages::request);
      const int64_t rows = end - r;
      table.rows.push_back(
          {int64_t{info.pass}, int64_t{first.row.request},
           rows == 1 ? std::to_string(first.row.position)
                     : fmt::format("{}-{}", first.row.position, last.row.position),
           std::string(first.phase == Phase::decode ? "decode" : "prefill"),
           pages == info.pages.end() ? std::string("-")
                                     : fmt::format("{}", fmt::join(pages->pages, " ")),
           slots_text(std::span(info.rows).subspan(r, end - r)),
           // cu_seqlens as kernels of varying lengths take it: the first row of the request and of
           // the next; the context counts the tokens of this pass too.
           fmt::format("{}..{}", edge, edge + rows), int64_t{last.row.position} + 1});
      edge += rows;
      r = end;
    }
  }
  return table;
}

}  // namespace lockstep
