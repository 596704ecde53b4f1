#include "src/selftest/outcomes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

std::string seeded_text(const FaultRequest& fault) {
  return fmt::format("{}@{}", fault.name, fault.layer);
}

}  // namespace

Place first_place(const FaultRequest& request) {
  const Point* point = find_point(fault_of(request).point);
  return {point, point->per_layer ? std::max(0, request.layer) : -1};
}

Selftest::Outcome outcome_of(const SelftestPlan::Case& of, const Result& result) {
  Selftest::Outcome outcome{.name = of.name,
                            .verdict = result.verdict,
                            .story = result.story,
                            .limit_ratio = result.limit_ratio};
  for (const FaultRequest& fault : of.faults) {
    outcome.seeded.push_back(seeded_text(fault));
    outcome.exact_class = first_place(fault).point->node_class == NodeClass::exact;
  }
  for (const Result::OtherRule& rule : result.others) {
    Selftest::Outcome::Other& other = outcome.others[rule.name];
    other.alarmed = rule.first.has_value();
    for (const FaultRequest& fault : of.faults)
      other.first_exact = other.first_exact || rule.first == first_place(fault);
  }
  if (!result.first) return outcome;
  outcome.nonfinite = result.first->verdict == Verdict::nonfinite;
  for (const FaultRequest& fault : of.faults) {
    const Place place = first_place(fault);
    if (std::ranges::any_of(result.findings,
                            [&](const Finding& f) { return f.node.place == place; }))
      outcome.found.push_back(seeded_text(fault));
    outcome.first_exact = outcome.first_exact || result.first->node.place == place;
  }
  return outcome;
}

std::string line_of(const Selftest::Outcome& outcome) {
  Json json = {{"name", outcome.name},
               {"verdict", name_of(outcome.verdict)},
               {"story", outcome.story},
               {"nonfinite", outcome.nonfinite},
               {"seeded", outcome.seeded},
               {"found", outcome.found},
               {"first_exact", outcome.first_exact},
               {"exact_class", outcome.exact_class}};
  if (outcome.effect) json["effect"] = json_number<Json>(*outcome.effect);
  json["limit_ratio"] = json_number<Json>(outcome.limit_ratio);
  for (const auto& [rule, other] : outcome.others)
    json["others"][rule] = {{"alarmed", other.alarmed}, {"first_exact", other.first_exact}};
  return json.dump();
}

Selftest::Outcome outcome_from(const JsonValue& json) {
  Selftest::Outcome outcome{.name = json["name"].text(),
                            .verdict = value_named<RunVerdict>(json["verdict"].text(), "verdict"),
                            .story = json["story"].text(),
                            .nonfinite = json["nonfinite"].flag(),
                            .seeded = json["seeded"].texts(),
                            .found = json["found"].texts(),
                            .first_exact = json["first_exact"].flag(),
                            .exact_class = json["exact_class"].flag()};
  if (const JsonValue effect = json["effect"]) outcome.effect = effect.real();
  outcome.limit_ratio = json["limit_ratio"].real();
  if (const JsonValue others = json["others"])
    for (const auto& [rule, other] : others.fields())
      outcome.others[std::string(rule)] = {other["alarmed"].flag(), other["first_exact"].flag()};
  return outcome;
}

}  // namespace lockstep
