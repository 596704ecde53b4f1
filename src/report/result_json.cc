// The whole Result as JSON, the form that is kept (in a trace, by CI) and read back by
// result_from_json.cc. tools/schemas/result.schema.json describes it, and a test holds one to the
// other. A number that was not measured is null, never 0; NaN and infinities are texts, as JSON has
// none.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/judge/error_map.h"
#include "src/judge/story.h"
#include "src/report/place_json.h"
#include "src/report/report.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// The ops that were judged or shared out together, as their tensors were not recorded.
Json of_places(const std::vector<Place>& places) {
  Json all = Json::array();
  for (const Place& place : places)
    all.push_back({{"layer", layer_json<Json>(place)}, {"point", place.point->name}});
  return all;
}

Json of_finding(const Finding& f) {
  return {{"request", f.node.request},
          {"position", f.position},
          {"pass", f.node.pass},
          {"layer", layer_json<Json>(f.node.place)},
          {"point", f.node.place.point->name},
          {"verdict", name_of(f.verdict)},
          {"statistic", f.statistic ? name_of(*f.statistic) : ""},
          {"value", json_number<Json>(f.value)},
          {"limit", json_number<Json>(f.limit)},
          {"index", f.index},
          {"want", f.index.empty() ? Json(nullptr) : json_number<Json>(f.want)},
          {"got", f.index.empty() ? Json(nullptr) : json_number<Json>(f.got)},
          {"budgets", json_number<Json>(f.budgets)},
          {"of_row", json_number<Json>(f.of_row)},
          {"region", of_places(f.region)},
          {"rule", rule_of(f)},
          {"precision", f.shape ? json_number<Json>(f.shape->precision) : Json(nullptr)},
          {"recall", f.shape ? json_number<Json>(f.shape->recall) : Json(nullptr)}};
}

Json of_confirmation(const Confirmation& c) {
  return {{"layer", layer_json<Json>(c.place)},
          {"point", c.place.point->name},
          {"confirmed", c.confirmed},
          {"says", c.says}};
}

// Null where nothing was measured: a number would say that something was.
Json number_if(bool measured, double number) {
  return measured ? json_number<Json>(number) : Json(nullptr);
}

// NaN, where nothing was compared, is null.
Json of_bucket(double largest) { return number_if(!std::isnan(largest), largest); }

// extent: of the axis; 0: not known.
Json of_buckets(const std::string& axis, const ErrorProfile::Buckets& buckets, int64_t extent) {
  Json all = Json::array();
  for (size_t i = 0; i < buckets.largest.size(); ++i) {
    const int64_t first = i * buckets.width;
    const int64_t last = first + buckets.width - 1;
    all.push_back({{"first", first},
                   {"last", extent > 0 ? std::min(last, extent - 1) : last},
                   {"budgets", of_bucket(buckets.largest[i])}});
  }
  return {{"axis", axis}, {"width", buckets.width}, {"buckets", all}};
}

// Rows of buckets, by position and then by column.
Json of_map(const ErrorProfile& errors) {
  if (errors.map.empty()) return nullptr;
  Json rows = Json::array();
  const size_t columns = errors.columns.largest.size();
  for (size_t i = 0; i < errors.map.size(); ++i) {
    if (i % columns == 0) rows.push_back(Json::array());
    rows.back().push_back(of_bucket(errors.map[i]));
  }
  return rows;
}

// Columns of the map are named by the row's first axis: heads, experts, or plain elements.
Json of_errors(const Point& point, const ErrorProfile& errors) {
  if (errors.elements == 0) return nullptr;
  Json worst = Json::array();
  for (const ErrorProfile::WorstElement& e : errors.worst)
    worst.push_back({{"request", e.request},
                     {"pass", e.pass},
                     {"index", e.index},
                     {"want", json_number<Json>(e.want)},
                     {"got", json_number<Json>(e.got)},
                     {"budgets", json_number<Json>(e.budgets)}});
  const std::vector<std::string> axes = axis_names(point);
  return {{"rows", errors.rows},
          {"elements", errors.elements},
          {"nonfinite", errors.nonfinite},
          {"row_shape", errors.row_shape},
          {"by_position", of_buckets("position", errors.positions, 0)},
          {"by_head", of_buckets(axes.empty() ? "element" : axes.front(), errors.columns,
                                 errors.row_shape.front())},
          {"map", of_map(errors)},
          {"histogram", errors.histogram},
          {"worst", worst}};
}

// The causes that explain the place's findings, best first, with how much of them.
Json of_looks_like(const std::vector<Finding::LooksLike>& all) {
  Json list = Json::array();
  for (const Finding::LooksLike& like : all)
    list.push_back({{"says", like.says},
                    {"elements", like.elements},
                    {"of_elements", like.of_elements},
                    {"nodes", like.nodes},
                    {"of_nodes", like.of_nodes}});
  return list;
}

Json of_place(const PlaceSummary& p) {
  return {{"layer", layer_json<Json>(p.place)},
          {"point", p.place.point->name},
          {"expected", p.expected},
          {"judged", p.judged},
          {"worst",
           {{"t1", number_if(p.measured, p.worst_t1)},
            {"t2", number_if(p.measured && p.has_t2, p.worst_t2)},
            {"of_row", number_if(p.measured, p.worst_of_row)},
            {"request", p.worst_request},
            {"position", p.worst_position},
            {"pass", p.worst_pass}}},
          {"verdict", name_of(p.verdict)},
          {"introduced_rms", number_if(p.measured, p.introduced_rms)},
          {"propagated_rms", number_if(p.compared, p.propagated_rms)},
          {"total_rms", number_if(p.compared, p.total_rms)},
          {"excluded", p.excluded},
          {"ancestor", p.ancestor},
          {"errors", of_errors(*p.place.point, p.errors)},
          {"looks_like", of_looks_like(p.looks_like)}};
}

Json of_rows(const JudgedRows& rows) {
  if (rows.asked.all()) return nullptr;
  return {{"most", rows.asked.most},      {"seed", rows.asked.seed}, {"judged", rows.judged},
          {"expected", rows.expected},    {"of_node", rows.of_node}, {"node_rows", rows.node_rows},
          {"one_in", JudgedRows::kOneIn}, {"power", rows.power()}};
}

Json of_scope(const Scope& s) {
  return {{"layers", s.layers},
          {"selection", s.selection},
          {"rows", of_rows(s.rows)},
          {"positions", s.positions},
          {"requests", s.requests},
          {"contracts", s.contracts},
          {"contracts_found", s.found},
          {"contracts_asked", s.asked},
          {"largest", json_number<Json>(s.largest)},
          {"given", s.given},
          {"references_checked", s.references_checked}};
}

Json of_request(const RequestResult& r) {
  Json flips = Json::array();
  for (const Flip& f : r.flips)
    flips.push_back({{"position", f.position},
                     {"engine", f.engine},
                     {"reference", f.reference},
                     {"margin_ulp", json_number<Json>(f.margin_ulp)},
                     {"explained", f.explained},
                     {"ancestor", f.ancestor},
                     {"engine_text", f.engine_text},
                     {"reference_text", f.reference_text}});
  Json margins = Json::array();
  for (const Margin& m : r.margins)
    margins.push_back({{"position", m.position}, {"ulp", json_number<Json>(m.ulp)}});
  return {
      {"id", r.id},         {"name", r.name}, {"prompt_tokens", r.prompt},    {"tokens", r.tokens},
      {"argmax", r.argmax}, {"text", r.text}, {"token_texts", r.token_texts}, {"flips", flips},
      {"margins", margins}};
}

Json of_percentiles(const LogitsSummary::KlPercentiles& kl) {
  const auto of = [](const std::optional<double>& x) {
    return number_if(x.has_value(), x.value_or(0));
  };
  return {{"median", of(kl.median)}, {"p90", of(kl.p90)},   {"p95", of(kl.p95)},
          {"p99", of(kl.p99)},       {"p999", of(kl.p999)}, {"max", of(kl.max)}};
}

Json of_logits(const LogitsSummary& l) {
  return {{"max_abs", json_number<Json>(l.max_abs)},
          {"kl_mean", json_number<Json>(l.kl_mean)},
          {"kl_reference", json_number<Json>(l.kl_reference)},
          {"kl_percentiles", of_percentiles(l.kl)},
          {"argmax_equal", std::to_string(l.argmax_equal) + "/" + std::to_string(l.compared)},
          {"explained_flips", l.explained_flips},
          {"unexplained_flips", l.unexplained_flips},
          {"expected_flips", json_number<Json>(l.expected_flips)},
          {"least_margin_ulp", json_number<Json>(l.least_margin_ulp)}};
}

Json of_error_budget(const ErrorBudget& b) {
  // by_point follows from the shares: it is for other readers, and result_from_json() leaves it.
  Json points = Json::array(), shares = Json::array();
  const auto layer = [](int number) { return number < 0 ? Json(nullptr) : Json(number); };
  for (const PointShare& share : by_point(b))
    points.push_back({{"point", share.point->name},
                      {"share", json_number<Json>(share.share)},
                      {"first_layer", layer(share.first)},
                      {"last_layer", layer(share.last)},
                      {"within", json_number<Json>(share.within)}});
  for (const ErrorShare& share : b.shares)
    shares.push_back({{"layer", layer_json<Json>(share.place)},
                      {"point", share.place.point->name},
                      {"share", json_number<Json>(share.share)},
                      {"alone", number_if(share.alone.has_value(), share.alone.value_or(0))},
                      {"with", of_places(share.with)}});
  return {{"none", b.none},
          {"rms", json_number<Json>(b.rms)},
          {"rows", b.rows},
          {"requests", b.requests},
          {"steps", b.steps},
          {"recorded", b.recorded},
          {"expected", b.expected},
          {"left_out", b.left_out},
          {"rest", json_number<Json>(b.rest)},
          {"by_point", points},
          {"shares", shares}};
}

// The counts of nodes; a verdict's name is its key.
Json of_nodes(const Result& result) {
  Json nodes = {{"expected", result.expected},
                {"judged", result.judged},
                {"hidden", result.hidden},
                {"excluded_elements", result.excluded}};
  for (const Verdict verdict : values_of<Verdict>())
    nodes[name_of(verdict)] = result.counts[verdict];
  return nodes;
}

}  // namespace

std::string report_json(const Result& result) {
  Json findings = Json::array(), confirmations = Json::array(), points = Json::array(),
       requests = Json::array();
  for (const Finding& f : result.findings) findings.push_back(of_finding(f));
  for (const Confirmation& c : result.confirmations) confirmations.push_back(of_confirmation(c));
  for (const PlaceSummary& p : result.places) points.push_back(of_place(p));
  for (const RequestResult& r : result.requests) requests.push_back(of_request(r));
  Json limits = Json::object();
  for (const auto& [name, value] : result.limits) limits[name] = json_number<Json>(value);
  Json json = {
      {"format", "lockstep-result"},
      {"format_version", "1.2"},
      {"verdict", name_of(result.verdict)},
      {"story", result.story},
      {"nodes", of_nodes(result)},
      {"first", result.first ? of_finding(*result.first) : Json(nullptr)},
      {"findings", findings},
      {"confirmations", confirmations},
      {"points", points},
      {"requests", requests},
      {"logits", result.logits ? of_logits(*result.logits) : Json(nullptr)},
      {"error_budget", result.error_budget ? of_error_budget(*result.error_budget) : Json(nullptr)},
      {"scope", of_scope(result.scope)},
      {"provenance", result.provenance},
      {"limits", limits},
      {"cache", result.cache},
      {"blind", result.blind},
      {"notes", result.notes}};
  // A prompt's name may hold bytes that are no UTF-8: shown as replacement characters.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
