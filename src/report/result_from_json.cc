// The result comes back from its JSON as it was, number for number (NaN and the infinities as
// texts), so that a judgement that a trace keeps can be shown in any form later. The reader checks
// every field: a file may come from another version or another hand.
#include <fmt/format.h>

#include <cstdio>

#include "kernels/files/json.h"
#include "src/judge/story.h"
#include "src/report/report.h"

namespace lockstep {
namespace {

constexpr size_t kMostResult = size_t{1} << 28;  // bytes

// Refusals name the field that was read and what was wanted there (JsonValue::refuse): a result may
// come from another version, or from somebody's script.
Place place_of(const JsonValue& json) {
  const Point* point = find_point(json["point"].text());
  if (point == nullptr) json["point"].refuse("the name of a point");
  return {point, json["layer"].is_null() ? -1 : json["layer"].whole<int32_t>()};
}

Verdict verdict_of(const JsonValue& json) {
  const std::string& name = json["verdict"].text();
  if (const auto verdict = find_named<Verdict>(name)) return *verdict;
  json["verdict"].refuse("the verdict of a node");
}

// `want` and `got` are null where a finding is about no element.
Finding finding_from(const JsonValue& json) {
  Finding f{
      .node = {place_of(json), json["pass"].whole<int32_t>(), json["request"].whole<int32_t>()},
      .position = json["position"].whole<int32_t>(),
      .verdict = verdict_of(json),
      .statistic = find_named<StatisticKind>(json["statistic"].text()),
      .value = json["value"].real(),
      .limit = json["limit"].real(),
      .index = json["index"].wholes<int64_t>(),
      .budgets = json["budgets"].real(),
      .of_row = json["of_row"].real(),
      .rule = json["rule"].text()};
  if (!f.index.empty()) {
    f.want = json["want"].real();
    f.got = json["got"].real();
  }
  for (const JsonValue& hidden : json["region"].items()) f.region.push_back(place_of(hidden));
  if (json["precision"].is_null()) return f;
  // The rule's text says where the wrong elements are too: split_rule() takes that out again.
  f.shape = ShapeRule{
      .where = "", .precision = json["precision"].real(), .recall = json["recall"].real()};
  split_rule(f);
  return f;
}

Confirmation confirmation_from(const JsonValue& json) {
  return {place_of(json), json["confirmed"].flag(), json["says"].text()};
}

// A number that may be none.
std::optional<double> measured_from(const JsonValue& json) {
  if (json.is_null()) return {};
  return json.real();
}

// A bucket in which nothing was compared is null in JSON and NaN in memory.
double bucket_from(const JsonValue& json) { return measured_from(json).value_or(kNothingCompared); }

ErrorProfile::Buckets buckets_from(const JsonValue& json) {
  ErrorProfile::Buckets buckets{.width = json["width"].whole<int64_t>()};
  for (const JsonValue& bucket : json["buckets"].items())
    buckets.largest.push_back(bucket_from(bucket["budgets"]));
  return buckets;
}

// Sizes are checked against each other: a map is drawn by buckets that stand elsewhere in the file.
ErrorProfile errors_from(const JsonValue& json) {
  if (json.is_null()) return {};
  ErrorProfile errors(json["row_shape"].wholes<int64_t>());
  errors.rows = json["rows"].whole<int64_t>();
  errors.elements = json["elements"].whole<int64_t>();
  errors.nonfinite = json["nonfinite"].whole<int64_t>();
  errors.positions = buckets_from(json["by_position"]);
  errors.columns = buckets_from(json["by_head"]);
  if (const JsonValue map = json["map"]; !map.is_null())
    for (const JsonValue& row : map.items())
      for (const JsonValue& largest : row.items()) errors.map.push_back(bucket_from(largest));
  const size_t cells = errors.positions.largest.size() * errors.columns.largest.size();
  if (!errors.map.empty() && errors.map.size() != cells)
    json["map"].refuse(fmt::format("a map of {} buckets", cells));
  errors.histogram = json["histogram"].wholes<int64_t>();
  if (errors.histogram.size() != ErrorProfile::kBins)
    json["histogram"].refuse(fmt::format("a histogram of {} bins", ErrorProfile::kBins));
  for (const JsonValue& e : json["worst"].items())
    errors.worst.push_back({.pass = e["pass"].whole<int32_t>(),
                            .request = e["request"].whole<int32_t>(),
                            .index = e["index"].wholes<int64_t>(),
                            .want = e["want"].real(),
                            .got = e["got"].real(),
                            .budgets = e["budgets"].real()});
  return errors;
}

LogitsSummary::KlPercentiles percentiles_from(const JsonValue& json) {
  return {.median = measured_from(json["median"]),
          .p90 = measured_from(json["p90"]),
          .p95 = measured_from(json["p95"]),
          .p99 = measured_from(json["p99"]),
          .p999 = measured_from(json["p999"]),
          .max = measured_from(json["max"])};
}

// Results of format 1.0 have none.
std::vector<Finding::LooksLike> looks_like_from(const JsonValue& json) {
  std::vector<Finding::LooksLike> all;
  if (!json) return all;
  for (const JsonValue& like : json.items())
    all.push_back({.says = like["says"].text(),
                   .elements = like["elements"].whole<int64_t>(),
                   .of_elements = like["of_elements"].whole<int64_t>(),
                   .nodes = like["nodes"].whole<int64_t>(),
                   .of_nodes = like["of_nodes"].whole<int64_t>()});
  return all;
}

PlaceSummary place_from(const JsonValue& json) {
  const JsonValue worst = json["worst"];
  return {.place = place_of(json),
          .expected = json["expected"].whole<int64_t>(),
          .judged = json["judged"].whole<int64_t>(),
          .verdict = verdict_of(json),
          // The fields below, measured, compared and has_t2, tell a 0 that stands for null from one
          // that was measured.
          .worst_t1 = measured_from(worst["t1"]).value_or(0),
          .worst_t2 = measured_from(worst["t2"]).value_or(0),
          .worst_of_row = measured_from(worst["of_row"]).value_or(0),
          .worst_request = worst["request"].whole<int32_t>(),
          .worst_position = worst["position"].whole<int32_t>(),
          .worst_pass = worst["pass"].whole<int32_t>(),
          .introduced_rms = measured_from(json["introduced_rms"]).value_or(0),
          .propagated_rms = measured_from(json["propagated_rms"]).value_or(0),
          .total_rms = measured_from(json["total_rms"]).value_or(0),
          .excluded = json["excluded"].whole<int64_t>(),
          .ancestor = json["ancestor"].text(),
          .measured = !json["introduced_rms"].is_null(),
          .compared = !json["total_rms"].is_null(),
          .has_t2 = !worst["t2"].is_null(),
          .errors = errors_from(json["errors"]),
          .looks_like = looks_like_from(json["looks_like"])};
}

Flip flip_from(const JsonValue& json) {
  return {.position = json["position"].whole<int32_t>(),
          .engine = json["engine"].whole<int32_t>(),
          .reference = json["reference"].whole<int32_t>(),
          .margin_ulp = json["margin_ulp"].real(),
          .explained = json["explained"].flag(),
          .ancestor = json["ancestor"].text(),
          .engine_text = json["engine_text"].text(),
          .reference_text = json["reference_text"].text()};
}

RequestResult request_from(const JsonValue& json) {
  RequestResult request{.id = json["id"].whole<int32_t>(),
                        .name = json["name"].text(),
                        .prompt = json["prompt_tokens"].wholes<int32_t>(),
                        .tokens = json["tokens"].wholes<int32_t>(),
                        .argmax = json["argmax"].wholes<int32_t>(),
                        .text = json["text"].text(),
                        .token_texts = json["token_texts"].texts()};
  for (const JsonValue& margin : json["margins"].items())
    request.margins.push_back({margin["position"].whole<int32_t>(), margin["ulp"].real()});
  for (const JsonValue& flip : json["flips"].items()) request.flips.push_back(flip_from(flip));
  return request;
}

// "24/24": both counts in one field, for people who read the file.
LogitsSummary logits_from(const JsonValue& json) {
  const std::string& equal = json["argmax_equal"].text();
  int64_t equals = 0, compared = 0;
  if (std::sscanf(equal.c_str(), "%ld/%ld", &equals, &compared) != 2)
    json["argmax_equal"].refuse("two numbers, as 24/24,");
  return {.max_abs = json["max_abs"].real(),
          .kl_mean = json["kl_mean"].real(),
          .kl_reference = json["kl_reference"].real(),
          .kl = percentiles_from(json["kl_percentiles"]),
          .expected_flips = json["expected_flips"].real(),
          .compared = compared,
          .argmax_equal = equals,
          .explained_flips = json["explained_flips"].whole<int64_t>(),
          .unexplained_flips = json["unexplained_flips"].whole<int64_t>(),
          .least_margin_ulp = json["least_margin_ulp"].real()};
}

ErrorBudget error_budget_from(const JsonValue& json) {
  ErrorBudget budget{.none = json["none"].text(),
                     .rms = json["rms"].real(),
                     .rows = json["rows"].whole<int64_t>(),
                     .requests = json["requests"].whole<int64_t>(),
                     .rest = json["rest"].real(),
                     .steps = json["steps"].whole<int32_t>(),
                     .recorded = json["recorded"].whole<int64_t>(),
                     .expected = json["expected"].whole<int64_t>(),
                     .left_out = json["left_out"].text()};
  for (const JsonValue& s : json["shares"].items()) {
    ErrorShare& share = budget.shares.emplace_back(
        ErrorShare{place_of(s), s["share"].real(), measured_from(s["alone"])});
    for (const JsonValue& hidden : s["with"].items()) share.with.push_back(place_of(hidden));
  }
  return budget;
}

JudgedRows rows_from(const JsonValue& json) {
  if (json.is_missing() || json.is_null()) return {};
  return {.asked = {.most = json["most"].whole<int64_t>(), .seed = json["seed"].whole<uint64_t>()},
          .judged = json["judged"].whole<int64_t>(),
          .expected = json["expected"].whole<int64_t>(),
          .of_node = json["of_node"].whole<int64_t>(),
          .node_rows = json["node_rows"].whole<int64_t>()};
}

Scope scope_from(const JsonValue& json) {
  return {.layers = json["layers"].whole<int32_t>(),
          .selection = json["selection"].text(),
          .rows = rows_from(json["rows"]),
          .positions = json["positions"].whole<int32_t>(),
          .requests = json["requests"].whole<int64_t>(),
          .contracts = json["contracts"].text_fields(),
          .found = json["contracts_found"].texts(),
          .asked = json["contracts_asked"].is_missing() ? "" : json["contracts_asked"].text(),
          .largest = json["largest"].real(),
          .given = json["given"].texts(),
          .references_checked = json["references_checked"].whole<int64_t>()};
}

// Fields that 1.1 has beyond 1.0 may be missing, and before 1.2 no verdict was "confounded".
Result result_from(const JsonValue& json) {
  if (!json["format"].is("lockstep-result")) json["format"].refuse("\"lockstep-result\"");
  const JsonValue version = json["format_version"];
  if (!version.is("1.0") && !version.is("1.1") && !version.is("1.2"))
    version.refuse("\"1.0\", \"1.1\" or \"1.2\"");
  const JsonValue nodes = json["nodes"];
  const auto verdict_of_run = find_named<RunVerdict>(json["verdict"].text());
  if (!verdict_of_run) json["verdict"].refuse("the verdict of a run");
  Result result{.verdict = *verdict_of_run,
                .story = json["story"].text(),
                .expected = nodes["expected"].whole<int64_t>(),
                .judged = nodes["judged"].whole<int64_t>(),
                .hidden = nodes["hidden"].whole<int64_t>(),
                .excluded = nodes["excluded_elements"].whole<int64_t>(),
                .scope = scope_from(json["scope"]),
                .provenance = json["provenance"].text_fields(),
                .cache = json["cache"].text(),
                .blind = json["blind"].texts(),
                .notes = json["notes"].texts()};
  for (const Verdict verdict : values_of<Verdict>())
    if (verdict != Verdict::confounded || version.is("1.2"))
      result.counts[verdict] = nodes[name_of(verdict)].whole<int64_t>();
  if (const JsonValue first = json["first"]; !first.is_null()) result.first = finding_from(first);
  for (const JsonValue& f : json["findings"].items()) result.findings.push_back(finding_from(f));
  for (const JsonValue& c : json["confirmations"].items())
    result.confirmations.push_back(confirmation_from(c));
  for (const JsonValue& p : json["points"].items()) result.places.push_back(place_from(p));
  for (const JsonValue& r : json["requests"].items()) result.requests.push_back(request_from(r));
  if (const JsonValue l = json["logits"]; !l.is_null()) result.logits = logits_from(l);
  // Results of before have none.
  if (const JsonValue b = json["error_budget"]; !b.is_missing() && !b.is_null())
    result.error_budget = error_budget_from(b);
  for (const auto& [name, value] : json["limits"].fields())
    result.limits.emplace(name, value.real());
  return result;
}

}  // namespace

Result result_from_json(const std::string& text, const std::string& name) {
  const JsonDocument document(text, {name, "it is damaged, or no result of lockstep", kMostResult});
  return result_from(document.root());
}

}  // namespace lockstep
