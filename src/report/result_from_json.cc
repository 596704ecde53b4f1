#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "src/judge/story.h"
#include "src/report/report.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

Place place_of(const Json& json) {
  const Point* point = find_point(json.at("point").get<std::string>());
  check(point != nullptr, "{} is no point", json.at("point").dump());
  return {point, json.at("layer").is_null() ? -1 : int_from(json.at("layer"))};
}

Verdict verdict_of(const Json& json) {
  const std::string name = json.at("verdict");
  for (int i = 0; i < kVerdicts; ++i)
    if (name == name_of(static_cast<Verdict>(i))) return static_cast<Verdict>(i);
  fail("'{}' is no verdict of a node", name);
}

Finding finding_from(const Json& json) {
  Finding f{.node = {place_of(json), int_from(json.at("pass")), int_from(json.at("request"))},
            .position = int_from(json.at("position")),
            .verdict = verdict_of(json),
            .statistic = statistic_kind_from(json.at("statistic").get<std::string>()),
            .value = double_from(json.at("value")),
            .limit = double_from(json.at("limit")),
            .index = json.at("index").get<std::vector<int64_t>>(),
            .budgets = double_from(json.at("budgets")),
            .of_row = double_from(json.at("of_row")),
            .rule = json.at("rule")};
  if (!f.index.empty()) {
    f.want = double_from(json.at("want"));
    f.got = double_from(json.at("got"));
  }
  if (json.at("precision").is_null()) return f;
  f.shape = ShapeRule{.where = "",
                      .precision = double_from(json.at("precision")),
                      .recall = double_from(json.at("recall"))};
  split_rule(f);
  return f;
}

Confirmation confirmation_from(const Json& json) {
  return {place_of(json), json.at("confirmed"), json.at("says")};
}

double number_or_none(const Json& json) { return json.is_null() ? 0 : double_from(json); }

PlaceSummary place_from(const Json& json) {
  const Json& worst = json.at("worst");
  return {.place = place_of(json),
          .expected = json.at("expected"),
          .judged = json.at("judged"),
          .verdict = verdict_of(json),
          .worst_t1 = number_or_none(worst.at("t1")),
          .worst_t2 = number_or_none(worst.at("t2")),
          .worst_of_row = number_or_none(worst.at("of_row")),
          .worst_request = int_from(worst.at("request")),
          .worst_position = int_from(worst.at("position")),
          .worst_pass = int_from(worst.at("pass")),
          .introduced_rms = number_or_none(json.at("introduced_rms")),
          .propagated_rms = number_or_none(json.at("propagated_rms")),
          .total_rms = number_or_none(json.at("total_rms")),
          .excluded = json.at("excluded"),
          .ancestor = json.at("ancestor"),
          .measured = !worst.at("t1").is_null(),
          .compared = !json.at("total_rms").is_null()};
}

Flip flip_from(const Json& json) {
  return {.position = int_from(json.at("position")),
          .engine = int_from(json.at("engine")),
          .reference = int_from(json.at("reference")),
          .margin_ulp = double_from(json.at("margin_ulp")),
          .explained = json.at("explained"),
          .ancestor = json.at("ancestor"),
          .engine_text = json.at("engine_text"),
          .reference_text = json.at("reference_text")};
}

RequestResult request_from(const Json& json) {
  RequestResult request{.id = int_from(json.at("id")),
                        .name = json.at("name"),
                        .prompt = json.at("prompt_tokens").get<std::vector<int32_t>>(),
                        .tokens = json.at("tokens").get<std::vector<int32_t>>(),
                        .argmax = json.at("argmax").get<std::vector<int32_t>>(),
                        .text = json.at("text")};
  for (const Json& flip : json.at("flips")) request.flips.push_back(flip_from(flip));
  return request;
}

LogitsSummary logits_from(const Json& json) {
  const std::string equal = json.at("argmax_equal");
  const size_t slash = equal.find('/');
  check(slash != std::string::npos, "argmax_equal was wanted as 24/24, found '{}'", equal);
  return {.max_abs = double_from(json.at("max_abs")),
          .kl_mean = double_from(json.at("kl_mean")),
          .kl_reference = double_from(json.at("kl_reference")),
          .expected_flips = double_from(json.at("expected_flips")),
          .compared = Json::parse(equal.substr(slash + 1)),
          .argmax_equal = Json::parse(equal.substr(0, slash)),
          .explained_flips = json.at("explained_flips"),
          .unexplained_flips = json.at("unexplained_flips"),
          .least_margin_ulp = double_from(json.at("least_margin_ulp"))};
}

Scope scope_from(const Json& json) {
  return {.layers = int_from(json.at("layers")),
          .selection = json.at("selection"),
          .positions = int_from(json.at("positions")),
          .requests = json.at("requests"),
          .contracts = json.at("contracts").get<std::map<std::string, std::string>>(),
          .found = json.at("contracts_found").get<std::vector<std::string>>(),
          .largest = double_from(json.at("largest")),
          .given = json.at("given").get<std::vector<std::string>>(),
          .references_checked = json.at("references_checked")};
}

Result result_from(const Json& json) {
  check(json.at("format") == "lockstep-result" && json.at("format_version") == "1.0",
        "format lockstep-result 1.0 was wanted, found {} {}", json.at("format").dump(),
        json.at("format_version").dump());
  const Json& nodes = json.at("nodes");
  Result result{.verdict = run_verdict_from(json.at("verdict").get<std::string>()),
                .story = json.at("story"),
                .expected = nodes.at("expected"),
                .judged = nodes.at("judged"),
                .excluded = nodes.at("excluded_elements"),
                .scope = scope_from(json.at("scope")),
                .provenance = json.at("provenance").get<std::map<std::string, std::string>>(),
                .cache = json.at("cache"),
                .blind = json.at("blind").get<std::vector<std::string>>(),
                .notes = json.at("notes").get<std::vector<std::string>>()};
  for (int i = 0; i < kVerdicts; ++i)
    result.counts[static_cast<size_t>(i)] = nodes.at(name_of(static_cast<Verdict>(i)));
  if (const Json& first = json.at("first"); !first.is_null()) result.first = finding_from(first);
  for (const Json& f : json.at("findings")) result.findings.push_back(finding_from(f));
  for (const Json& c : json.at("confirmations"))
    result.confirmations.push_back(confirmation_from(c));
  for (const Json& p : json.at("points")) result.places.push_back(place_from(p));
  for (const Json& r : json.at("requests")) result.requests.push_back(request_from(r));
  if (const Json& l = json.at("logits"); !l.is_null()) result.logits = logits_from(l);
  for (const auto& [name, value] : json.at("limits").items())
    result.limits[name] = double_from(value);
  return result;
}

}  // namespace

Result result_from_json(const std::string& text, const std::string& name) {
  std::string trouble;
  try {
    return result_from(Json::parse(text));
  } catch (const Json::exception& error) {
    trouble = error.what();
  } catch (const Error& error) {
    trouble = error.what();
  }
  fail("{} was wanted to be a result of lockstep as JSON, but it is damaged or something else ({})",
       name, trouble);
}

}  // namespace lockstep
