#include <cmath>
#include <nlohmann/json.hpp>

#include "src/judge/story.h"
#include "src/report/report.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json layer_of(const Place& place) { return place.layer < 0 ? Json(nullptr) : Json(place.layer); }

Json of_finding(const Finding& f) {
  return {{"request", f.node.request},
          {"position", f.position},
          {"pass", f.node.pass},
          {"layer", layer_of(f.node.place)},
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
          {"rule", rule_of(f)},
          {"precision", f.shape ? json_number<Json>(f.shape->precision) : Json(nullptr)},
          {"recall", f.shape ? json_number<Json>(f.shape->recall) : Json(nullptr)}};
}

Json of_confirmation(const Confirmation& c) {
  return {{"layer", layer_of(c.place)},
          {"point", c.place.point->name},
          {"confirmed", c.confirmed},
          {"says", c.says}};
}

// Null where nothing was measured: a number would say that something was.
Json number_if(bool measured, double number) {
  return measured ? json_number<Json>(number) : Json(nullptr);
}

Json of_place(const PlaceSummary& p) {
  return {{"layer", layer_of(p.place)},
          {"point", p.place.point->name},
          {"expected", p.expected},
          {"judged", p.judged},
          {"worst",
           {{"t1", number_if(p.measured, p.worst_t1)},
            {"t2", number_if(p.measured, p.worst_t2)},
            {"of_row", number_if(p.measured, p.worst_of_row)},
            {"request", p.worst_request},
            {"position", p.worst_position},
            {"pass", p.worst_pass}}},
          {"verdict", name_of(p.verdict)},
          {"introduced_rms", number_if(p.measured, p.introduced_rms)},
          {"propagated_rms", number_if(p.compared, p.propagated_rms)},
          {"total_rms", number_if(p.compared, p.total_rms)},
          {"excluded", p.excluded},
          {"ancestor", p.ancestor}};
}

Json of_scope(const Scope& s) {
  return {{"layers", s.layers},
          {"selection", s.selection},
          {"positions", s.positions},
          {"requests", s.requests},
          {"contracts", s.contracts},
          {"contracts_found", s.found},
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
  return {{"id", r.id},         {"name", r.name},     {"prompt_tokens", r.prompt},
          {"tokens", r.tokens}, {"argmax", r.argmax}, {"text", r.text},
          {"flips", flips}};
}

Json of_logits(const LogitsSummary& l) {
  return {{"max_abs", json_number<Json>(l.max_abs)},
          {"kl_mean", json_number<Json>(l.kl_mean)},
          {"kl_reference", json_number<Json>(l.kl_reference)},
          {"argmax_equal", std::to_string(l.argmax_equal) + "/" + std::to_string(l.compared)},
          {"explained_flips", l.explained_flips},
          {"unexplained_flips", l.unexplained_flips},
          {"expected_flips", json_number<Json>(l.expected_flips)},
          {"least_margin_ulp", json_number<Json>(l.least_margin_ulp)}};
}

Json of_nodes(const Result& result) {
  Json nodes = {{"expected", result.expected},
                {"judged", result.judged},
                {"excluded_elements", result.excluded}};
  for (int i = 0; i < kVerdicts; ++i)
    nodes[name_of(static_cast<Verdict>(i))] = result.counts[static_cast<size_t>(i)];
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
  Json json = {{"format", "lockstep-result"},
               {"format_version", "1.0"},
               {"verdict", name_of(result.verdict)},
               {"story", result.story},
               {"nodes", of_nodes(result)},
               {"first", result.first ? of_finding(*result.first) : Json(nullptr)},
               {"findings", findings},
               {"confirmations", confirmations},
               {"points", points},
               {"requests", requests},
               {"logits", result.logits ? of_logits(*result.logits) : Json(nullptr)},
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
