// A saved trace, judged as a live run is. Two readings: the first, without tensors, finds how much
// there is and which places are recorded, so that progress can be told and regions known; the
// second hands each pass to the judge. What a foreign trace leaves open (its graph, its contracts,
// its order of pairs) is filled in from the model and from what the trace declares.
#include "src/session/judged_trace.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string_view>

#include "kernels/base/check.h"
#include "src/audit/table_audit.h"
#include "src/causes/causes.h"
#include "src/judge/presets.h"
#include "src/judge/shares.h"
#include "src/report/output.h"
#include "src/session/ranked.h"
#include "src/session/ranks_apart.h"
#include "src/session/reference_library.h"
#include "src/session/result_texts.h"
#include "src/session/run_progress.h"
#include "src/session/trace_model.h"
#include "src/weights/fingerprint.h"
#include "src/weights/tokenizer.h"
#include "traces/bare_file.h"
#include "traces/bare_tensor.h"
#include "traces/manifest.h"
#include "traces/rope_pairs.h"
#include "traces/trace.h"

namespace lockstep {

namespace {

// The extent of a trace, known before its tensors are read.
struct Extent {
  int64_t tokens = 0;  // of all passes
  // Which places it holds a tensor or a digest of. Where it was meant to hold all, a place of a
  // point that other layers have is missed, and no part of a region.
  std::function<bool(const Place&)> recorded;
};

// Read without numbers: how much there is to judge, and which places. A trace of a selection lacks
// places on purpose; in others a point that occurs anywhere is expected everywhere. Of another
// program's but for one: hidden states, as libraries hand them out, have the stream that leaves the
// last layer after the last norm alone.
Extent extent_of(TraceReader& trace, const Manifest& manifest) {
  Extent extent;
  std::set<std::pair<int, int>> places;
  std::set<int> points;
  for (int i = 0; i < trace.passes(); ++i) {
    const Pass pass = trace.read(i, /*data=*/false);
    extent.tokens += std::ssize(pass.info.rows);
    for (const RecordedTensor& tensor : pass.tensors) {
      places.emplace(tensor.point->order(), tensor.layer);
      points.insert(tensor.point->order());
    }
  }
  const bool selected = !manifest.selection.empty();
  const Point &stream = point("mlp.residual"), &normed = point("final.norm");
  const bool only_normed = !manifest.graph_known && points.contains(normed.order());
  const int last = manifest.graph.layers() - 1;
  extent.recorded = [=, places = std::move(places),
                     points = std::move(points)](const Place& place) {
    const int order = place.point->order();
    const bool as_it_is = selected || (only_normed && place == Place{&stream, last});
    return as_it_is ? places.contains({order, place.layer}) : points.contains(order);
  };
  return extent;
}

}  // namespace

// A bare trace does not say what it left out: its graph is the model's, without the optional points
// that it never shows.
void OpenedTrace::fill_in(const Graph& of_model, const std::string& path) {
  if (!manifest.graph_known)
    manifest.graph = with_shares_of(manifest.graph, of_model.restricted([&](const Place& place) {
      return !place.point->optional || manifest.graph.has(place);
    }));
  const auto schema = manifest.provenance.find(kSchema);
  if (schema == manifest.provenance.end() || !manifest.contracts.empty()) return;
  manifest.contracts =
      meaning_of(schema->second, path + ": the attribute schema",
                 [](const std::string& name) { return contracts_of_preset(name); });
}

Pass OpenedTrace::read(int i) const {
  Pass pass = reader->read(i, /*data=*/true);
  if (interleaved) put_pairs_in_halves(pass);
  return pass;
}

OpenedTrace open_to_judge(const std::string& path, const Checkpoint& checkpoint,
                          const std::string& rope_pairs) {
  OpenedTrace opened{open_trace(path)};
  const Manifest& manifest = opened.manifest = opened.reader->manifest();
  const auto made_with = manifest.provenance.find("model_xxh3");
  check(made_with == manifest.provenance.end() || has_fingerprint(checkpoint, made_with->second),
        "{} was made with another model ({}, fingerprint {}) than {} (fingerprint {}): give the "
        "--model it was made with",
        path, manifest.provenance.contains("model") ? manifest.provenance.at("model") : "unnamed",
        made_with->second, checkpoint.dir(), checkpoint.fingerprint());
  const auto weights = manifest.provenance.find("weights_xxh3");
  check(weights == manifest.provenance.end() || has_weights_hash(checkpoint, weights->second),
        "{} was made with other weights than {} has{}: give the --model it was made with", path,
        checkpoint.dir(), made_with == manifest.provenance.end() ? "" : ", of the same config");
  // A fingerprint says more than shapes do.
  if (made_with == manifest.provenance.end()) check_model_of(*opened.reader, path, checkpoint);
  opened.interleaved = naming(path, [&] { return has_interleaved_pairs(manifest, rope_pairs); });
  return opened;
}

std::optional<ErrorBudgetMaker> budget_maker_of(const JudgeOptions& options,
                                                const Manifest& manifest) {
  if (!options.error_budget) return {};
  return std::make_optional<ErrorBudgetMaker>(manifest.graph);
}

namespace {

// The ranks of findings, and where the ranks were not alike. What reads a copy of another rank than
// rank 0's cannot be held to it: the trace has rank 0's.
void say_of_ranks(Result& result, const Manifest& manifest, const ModelConfig& config, int ranks,
                  const RowsOfPasses& rows) {
  const std::vector<Apart> apart = apart_in(manifest);
  for (Finding& finding : result.findings) {
    name_rank(finding, config, ranks, rows);
    const std::vector<Place> inputs = manifest.graph.inputs_of(finding.node.place);
    const auto reads = [&](const Apart& a) {
      const NodeId& node = a.finding.node;
      return node.pass == finding.node.pass && std::ranges::count(inputs, node.place) > 0;
    };
    if (const auto found = std::ranges::find_if(apart, reads); found != apart.end())
      finding.rule += fmt::format("{}rank {} read its own {}, and the trace has rank 0's",
                                  finding.rule.empty() ? "" : "; ", found->rank,
                                  text_of(found->finding.node.place));
  }
  if (result.first)
    for (const Finding& finding : result.findings)
      if (finding.node == result.first->node) result.first->rule = finding.rule;
  add_apart(result, apart, manifest.graph);
}

// The oracle of a model that so many ranks shared.
std::unique_ptr<Oracle> oracle_over(int ranks, const Checkpoint& checkpoint,
                                    const ReferenceOptions& options) {
  auto whole = open_reference().oracle(checkpoint, options);
  if (ranks <= 1) return whole;
  return std::make_unique<RankOracle>(std::move(whole), checkpoint.config(), ranks);
}

// The rows of a pass tell which rank computed which of the stream, where ranks shared it by them.
void keep_rows(const Manifest& manifest, const PassInfo& pass, RowsOfPasses& rows) {
  if (manifest.provenance.contains("sequence_parallel")) rows[pass.pass] = pass.rows;
}

// Hypotheses about ops of a model that so many ranks shared, each about the part of one rank.
std::unique_ptr<Hypotheses> hypotheses_over(int ranks, const Checkpoint& checkpoint,
                                            const ReferenceOptions& options) {
  auto whole = open_reference().hypotheses(checkpoint, options);
  if (ranks <= 1) return whole;
  return std::make_unique<RankHypotheses>(std::move(whole), checkpoint.config(), ranks);
}

// Keys that a query sees where it sees most; 0: all, in some layer.
int64_t widest_window(const ModelConfig& config) {
  const std::vector<int64_t>& window = config.window;
  const bool all = window.empty() || std::ranges::count(window, 0) > 0;
  return all ? 0 : std::ranges::max(window);
}

// Says that the run may have been in another dtype, which all numbers of a pass have that were
// computed of weights in it; empty: one has the run's, or none: too few tell. Where numbers are
// widened, a program may take the one dtype for the other.
std::optional<std::string> doubt_of_dtype(const Pass& pass, DType run) {
  const auto is_product = [](const Point& p) {
    return row_of(p.op).has_matrix && p.per_layer && p != point("mlp.router");
  };
  const bool has_products = std::ranges::any_of(
      pass.tensors, [&](const RecordedTensor& tensor) { return is_product(*tensor.point); });
  std::vector<const RecordedTensor*> telling;
  DType other = run;
  for (const RecordedTensor& tensor : pass.tensors) {
    const Point& p = *tensor.point;
    const bool tells = has_products ? is_product(p) : p.op == OpKind::norm;
    if (!tells || tensor.data.view().empty()) continue;
    const std::optional<DType> found = dtype_of_numbers(tensor.data);
    if (!found) continue;
    if (*found == run || (!telling.empty() && *found != other)) return "";
    telling.push_back(&tensor);
    other = *found;
  }
  if (telling.empty()) return std::nullopt;
  const Place first{telling.front()->point, telling.front()->layer};
  const std::string more =
      telling.size() > 1 ? fmt::format(", and of {} more tensors,", telling.size() - 1) : "";
  return fmt::format(
      "the run is judged as one in {}, and the numbers of {} in pass {}{} are {}: if it was in {}, "
      "the trace is to say so (its dtype)",
      name_of(run), text_of(first), pass.info.pass, more, name_of(other), name_of(other));
}

// Says of a trace that does not tell its weights that they may be others; empty: they may not. A
// single wrong op would be of one point, or of some layers.
std::string doubt_of_weights(const Result& result, const Manifest& manifest,
                             const std::string& dir) {
  if (manifest.provenance.contains("weights_xxh3") || manifest.provenance.contains("model_xxh3"))
    return {};
  std::set<std::string_view> points;
  std::set<int> layers;
  for (const PlaceSummary& of : result.places) {
    const Point& p = *of.place.point;
    if (!row_of(p.op).has_matrix || !p.per_layer || of.judged == 0) continue;
    if (of.verdict != Verdict::introduced || !of.looks_like.empty()) return {};
    points.insert(p.name);
    layers.insert(of.place.layer);
  }
  if (points.size() < 2 || layers.size() < 2) return {};
  return fmt::format(
      "every product with a weight of a layer that was judged is wrong, and nothing that was tried "
      "explains one: the weights may be others than those of {} (another checkpoint or revision of "
      "it, or changed when they were loaded), or the products share a kernel that is wrong; this "
      "trace does not say what it was made with (weights_xxh3)",
      dir);
}

// Says how the trace was read and how far, and what its file lacks.
void note_reading(const OpenedTrace& opened, const std::string& rope_pairs, int judged,
                  Result& result) {
  const TraceReader& trace = *opened.reader;
  if (opened.interleaved)
    result.notes.push_back(
        fmt::format("pairs of Q and K are interleaved, as {}: they were put in "
                    "halves before they were judged",
                    rope_pairs.empty() ? "the trace says" : "was asked for"));
  if (judged < trace.passes())
    result.notes.push_back(fmt::format(kStoppedEarly, judged, trace.passes(), "passes"));
  result.notes.insert(result.notes.end(), trace.problems().begin(), trace.problems().end());
}

}  // namespace

// The same judge as in a run, fed from the file: no engine, so that whoever wrote the trace is
// judged.
Result judge_trace(const std::string& path, const Checkpoint& checkpoint, JudgeOptions options,
                   Detail detail, const std::string& rope_pairs) {
  OpenedTrace opened = open_to_judge(path, checkpoint, rope_pairs);
  const ReferenceOptions reference{.dtype = opened.manifest.dtype};
  const int ranks = ranks_of(opened.manifest);
  const auto oracle = oracle_over(ranks, checkpoint, reference);
  opened.fill_in(oracle->graph(), path);
  const Manifest& manifest = opened.manifest;
  TraceReader& trace = *opened.reader;
  const Extent extent = extent_of(trace, manifest);
  options.recorded = extent.recorded;
  options.selection.check_layers(manifest.graph.layers());
  TableAudit tables(manifest, widest_window(checkpoint.config()));
  std::unique_ptr<ReferenceModel> exact, rounded;
  if (options.rows.all()) {
    exact = open_reference().model(checkpoint, reference, DType::f64);
    rounded = open_reference().model(checkpoint, reference, manifest.dtype);
  }
  Progress line(detail);
  RunProgress progress([&](const std::string& text) { line.show(text); }, manifest.graph.layers(),
                       extent.tokens);
  options.progress = [&](std::string_view doing, int layer) { progress.at(doing, layer); };
  Judge judge =
      naming(path, [&] { return Judge(manifest, *oracle, exact.get(), rounded.get(), options); });
  const auto hypotheses = hypotheses_over(ranks, checkpoint, reference);
  Causes causes(manifest, judge, *oracle, *hypotheses, options.progress);
  std::optional<ErrorBudgetMaker> budget = budget_maker_of(options, manifest);
  RowsOfPasses rows;
  std::optional<std::string> doubt;  // of the first pass with findings
  bool found = false;
  int judged = 0;
  while (judged < trace.passes() && !(options.fail_fast && found)) {
    Pass pass = opened.read(judged++);
    keep_rows(manifest, pass.info, rows);
    progress.begin_pass(pass.info.pass, std::ssize(pass.info.rows));
    const std::vector<NodeId> flags = naming(path, [&] { return judge.judge(pass); });
    found |= !flags.empty();
    if (found && !doubt) doubt = doubt_of_dtype(pass, manifest.dtype);
    causes.add(pass, flags);
    if (budget) budget->add(pass);
    tables.add(pass.info);
    progress.end_pass();
  }
  Result result = judge.finish(manifest.requests, trace.complete());
  causes.put_into(result);
  if (ranks > 1)
    naming(path, [&] { say_of_ranks(result, manifest, checkpoint.config(), ranks, rows); });
  tables.put_into(result);
  if (budget) {
    line.show("sharing out the error of the logits");
    result.error_budget = budget->make(*open_reference().error_sharer(checkpoint, reference));
  }
  if (doubt.value_or("").empty()) doubt = doubt_of_weights(result, manifest, checkpoint.dir());
  if (!doubt->empty()) result.notes.push_back(*doubt);
  note_reading(opened, rope_pairs, judged, result);
  if (std::filesystem::exists(std::filesystem::path(checkpoint.dir()) / "tokenizer.json"))
    add_texts(result, Tokenizer::open(checkpoint.dir()));
  return result;
}

}  // namespace lockstep
