// Failures are asked for in turn: findings, under the limits that the baseline has; places, nodes
// and positions that are no longer looked at; more numbers that are not finite; and what the
// baseline's run tested and this one did not. A text that was drawn and took another way is left
// out from there on, since other tokens were fed.
#include "src/check/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "src/judge/ledger.h"
#include "src/judge/story.h"

namespace lockstep {
namespace {

CheckResult::Kind kind_of(Verdict verdict) {
  if (verdict == Verdict::nonfinite) return CheckResult::Kind::nonfinite;
  return verdict == Verdict::structural ? CheckResult::Kind::structural
                                        : CheckResult::Kind::introduced;
}

// One failure a place, in the order of the findings.
std::vector<CheckResult::Item> failures_of_nodes(const Result& run, const Limits& limits) {
  std::vector<CheckResult::Item> failures;
  std::vector<Place> seen;
  for (const Finding& first : run.findings) {
    const Place& place = first.node.place;
    if (std::ranges::count(seen, place) > 0) continue;
    seen.push_back(place);
    const auto nodes = std::ranges::count_if(
        run.findings, [&](const Finding& f) { return f.node.place == place; });
    const auto summary = std::ranges::find(run.places, place, &PlaceSummary::place);
    const int64_t of = summary == run.places.end() ? nodes : summary->expected;
    const OpLimits held =
        limits.of(place.point->op, dtype_from(run.provenance.at("compute_dtype")));
    failures.push_back(
        {.kind = kind_of(first.verdict),
         .op_class = place.point->op,
         .says = fmt::format("{}: {} of {} nodes; {}{}", text_of(place), nodes, of, text_of(first),
                             held == OpLimits{} ? "" : "; held to calibrated limits")});
  }
  return failures;
}

// A point in a run, by what the baseline has of it.
struct PointNow {
  int32_t layers = 0;
  int64_t nodes = 0, excluded = 0;
};

// Sums over the layers in which the run looked at the point.
PointNow point_of(const Result& run, const Point& point) {
  PointNow now;
  for (const PlaceSummary& place : run.places) {
    if (!(*place.place.point == point)) continue;
    ++now.layers;
    now.nodes += place.judged;
    now.excluded += place.excluded;
  }
  return now;
}

// A sentence of what is untested says by how much in parentheses: "... (the last is 22)".
std::string_view subject_of(std::string_view untested) {
  return untested.substr(0, untested.find(" ("));
}

// Failures of one point: it is looked at in fewer layers or nodes, or has more elements that are
// not finite. The number of nodes says nothing once a drawn text went another way, since it may
// have ended earlier.
void add_point(const Compared& c, const Baseline::PointRow& then,
               std::vector<CheckResult::Item>& failures) {
  const PointNow now = point_of(c.run, *then.point);
  const auto shrank = [&](const std::string& how) {
    failures.push_back({CheckResult::Kind::coverage, then.point->op,
                        fmt::format("{}: {}", then.point->name, how)});
  };
  if (now.layers == 0)
    shrank(fmt::format("looked at no more; the baseline has {} nodes of it", then.nodes));
  else if (now.layers < then.layers)
    shrank(fmt::format("looked at in {} layers, in the baseline in {}", now.layers, then.layers));
  else if (now.nodes < then.nodes && !c.texts.any_left())
    shrank(fmt::format("{} nodes judged, in the baseline {}", now.nodes, then.nodes));
  if (now.excluded > then.excluded && !c.texts.any_left())
    failures.push_back({CheckResult::Kind::nonfinite, then.point->op,
                        fmt::format("{}: {} elements are not finite, in the baseline {}",
                                    then.point->name, now.excluded, then.excluded)});
}

// The failure of a text that ended earlier than in the baseline.
void add_positions(const Compared& c, size_t i, std::vector<CheckResult::Item>& failures) {
  const int64_t then = std::ssize(c.baseline.texts[i].bits);
  int64_t now = 0;
  if (i < c.run.requests.size()) {
    const RequestResult& request = c.run.requests[i];
    now = std::ssize(request.prompt) + std::ssize(request.tokens) - 1;
    if (c.texts.left(i)) return;
  }
  if (now < then)
    failures.push_back({CheckResult::Kind::coverage,
                        {},
                        fmt::format("request {}: {} positions, in the baseline {}", i, now, then)});
}

// All failures. What is untested is compared by its subject, as its numbers change with every set
// of requests.
std::vector<CheckResult::Item> failures_of(const Compared& c) {
  std::vector<CheckResult::Item> failures = failures_of_nodes(c.run, c.baseline.limits());
  for (const Baseline::PointRow& then : c.baseline.points) add_point(c, then, failures);
  for (size_t i = 0; i < c.baseline.texts.size(); ++i) add_positions(c, i, failures);
  for (const std::string& untested : c.run.blind)
    if (std::ranges::count(c.baseline.untested, subject_of(untested), subject_of) == 0)
      failures.push_back({CheckResult::Kind::coverage,
                          {},
                          "tested in the baseline and not in this run: " + untested});
  return failures;
}

// The table of op classes: those of the baseline, in its order, with what this run has of them.
std::vector<CheckResult::ClassDrift> classes_of(const Compared& c) {
  std::vector<CheckResult::ClassDrift> classes;
  for (const Baseline::OpClass& then : c.baseline.classes) {
    CheckResult::ClassDrift& drift = classes.emplace_back(
        CheckResult::ClassDrift{.op = then.op, .baseline = then.reached, .limits = then.limits});
    if (const auto now = c.run.reached.find(then.op); now != c.run.reached.end())
      drift.reached = now->second;
    for (const PlaceSummary& place : c.run.places)
      if (place.place.point->op == then.op) drift.nodes += place.judged;
    for (const Baseline::PointRow& row : c.baseline.points)
      if (row.point->op == then.op) drift.baseline_nodes += row.nodes;
    for (const Finding& finding : c.run.findings)
      if (finding.node.place.point->op == then.op) ++drift.findings;
  }
  return classes;
}

// The verdict and its sentence, from what was compared.
void conclude(CheckResult& result) {
  const Result& run = result.run;
  const size_t failures = result.failures.size(), notes = result.notes.size();
  if (run.verdict == RunVerdict::inconclusive) {
    result.verdict = CheckResult::Verdict::inconclusive;
    result.story = run.story;
  } else if (!run.findings.empty()) {
    result.verdict = CheckResult::Verdict::fail;
    result.story = run.story;
  } else if (failures > 0) {
    result.verdict = CheckResult::Verdict::fail;
    result.story = fmt::format("no op introduces an error, but beside {}: {}{}", result.baseline,
                               result.failures.front().says,
                               failures == 1 ? "" : fmt::format("; and {} more", failures - 1));
  } else {
    result.verdict = CheckResult::Verdict::pass;
    result.story = fmt::format("{} of {} nodes within rounding, no less looked at than in {}",
                               run.judged, run.expected, result.baseline);
    if (notes > 0) result.story += fmt::format("; {} note{}", notes, notes == 1 ? "" : "s");
  }
}

}  // namespace

TextMatch::TextMatch(const Baseline& baseline, const Result& run, const std::vector<bool>& drawn) {
  const size_t both = std::min(baseline.texts.size(), run.requests.size());
  for (size_t i = 0; i < both; ++i) {
    const std::vector<int32_t>&now = run.requests[i].tokens, &then = baseline.texts[i].tokens;
    const size_t same = std::ranges::mismatch(now, then).in1 - now.begin();
    const bool is_drawn = i >= drawn.size() || drawn[i];
    texts_.push_back({same, is_drawn && same + 1 < then.size()});
  }
}

bool TextMatch::any_left() const { return std::ranges::any_of(texts_, &Text::left); }

CheckResult compare(const Baseline& baseline, Result run, const RunBits& bits,
                    const std::vector<bool>& drawn, const CheckOptions& options) {
  CheckResult result{.baseline = options.path, .run = std::move(run)};
  const TextMatch texts(baseline, result.run, drawn);
  const Compared compared{baseline, result.run, bits, texts};
  result.classes = classes_of(compared);
  result.failures = failures_of(compared);
  result.notes = notes_of(compared, result.classes, options.max_drift);
  if (const auto sha = baseline.provenance.find("git_sha"); sha != baseline.provenance.end())
    result.baseline_sha = sha->second;
  conclude(result);
  return result;
}

}  // namespace lockstep
