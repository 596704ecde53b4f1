#include <nlohmann/json.hpp>

#include "src/check/check_report.h"
#include "src/report/report.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json of_items(const std::vector<CheckResult::Item>& items) {
  Json list = Json::array();
  for (const CheckResult::Item& item : items)
    list.push_back({{"kind", name_of(item.kind)},
                    {"op_class", item.op_class ? Json(name_of(*item.op_class)) : Json(nullptr)},
                    {"says", item.says}});
  return list;
}

// The value of a statistic now and then, and the calibrated limit; null: theory's, or not measured.
Json of_statistic(const CheckResult::ClassDrift& c, double Reached::*value,
                  double OpLimits::*limit) {
  const auto shown = [value](const Reached& reached) {
    return is_measured(reached) ? json_number<Json>(reached.*value) : Json(nullptr);
  };
  const double held_to = c.limits.*limit;
  return {{"value", shown(c.reached)},
          {"baseline", shown(c.baseline)},
          {"limit", held_to == OpLimits{}.*limit ? Json(nullptr) : json_number<Json>(held_to)}};
}

Json of_class(const CheckResult::ClassDrift& c) {
  return {{"op_class", name_of(c.op)},
          {"nodes", c.nodes},
          {"baseline_nodes", c.baseline_nodes},
          {"findings", c.findings},
          {"t1_inner", of_statistic(c, &Reached::inner, &OpLimits::inner)},
          {"t2_t4", of_statistic(c, &Reached::rms, &OpLimits::rms)},
          {"t3", of_statistic(c, &Reached::share, &OpLimits::share)},
          {"t5_gain", of_statistic(c, &Reached::gain, &OpLimits::gain)}};
}

}  // namespace

std::string report_json(const CheckResult& result) {
  Json classes = Json::array();
  for (const CheckResult::ClassDrift& c : result.classes) classes.push_back(of_class(c));
  const Json sha = result.baseline_sha.empty() ? Json(nullptr) : Json(result.baseline_sha);
  const Json json = {{"format", "lockstep-check"},
                     {"format_version", "1.0"},
                     {"verdict", name_of(result.verdict)},
                     {"story", result.story},
                     {"baseline", {{"path", result.baseline}, {"git_sha", sha}}},
                     {"updated", result.updated},
                     {"forced_tokens", result.forced},
                     {"failures", of_items(result.failures)},
                     {"notes", of_items(result.notes)},
                     {"classes", classes},
                     {"result", Json::parse(report_json(result.run))}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
