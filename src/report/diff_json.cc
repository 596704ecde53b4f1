#include <nlohmann/json.hpp>

#include "src/report/report.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json layer_of(const Place& place) { return place.layer < 0 ? Json(nullptr) : Json(place.layer); }

Json of_node(const std::optional<DiffNode>& node) {
  if (!node) return nullptr;
  return {{"request", node->id.request},
          {"position", node->position},
          {"pass", node->id.pass},
          {"layer", layer_of(node->id.place)},
          {"point", node->id.place.point->name},
          {"relative", json_number<Json>(node->relative)},
          {"requests", node->requests},
          {"of_element", node->of_element},
          {"limit", json_number<Json>(node->limit)},
          {"measured", node->measured},
          {"reason", node->reason.empty() ? Json(nullptr) : Json(node->reason)}};
}

}  // namespace

std::string report_json(const DiffResult& result) {
  Json points = Json::array();
  for (const DiffPlace& p : result.places)
    points.push_back({{"layer", layer_of(p.place)},
                      {"point", p.place.point->name},
                      {"rows", p.rows},
                      {"equal", p.equal},
                      {"measured", p.measured},
                      {"difference_rms", json_number<Json>(p.difference_rms)},
                      {"rms", json_number<Json>(p.rms)},
                      {"ulps", json_number<Json>(p.ulps)}});
  Json judged = Json::array();
  for (const DiffJudgement& j : result.judged)
    judged.push_back({{"trace", j.trace}, {"verdict", name_of(j.verdict)}, {"story", j.story}});
  const Json json = {{"format", "lockstep-diff"},
                     {"format_version", "1.0"},
                     {"verdict", name_of(result.verdict)},
                     {"story", result.story},
                     {"rows",
                      {{"compared", result.rows},
                       {"equal", result.equal},
                       {"only_a", result.only_a},
                       {"only_b", result.only_b},
                       {"tokens_only_a", result.more_a},
                       {"tokens_only_b", result.more_b},
                       {"unmeasured", result.unmeasured},
                       {"unmeasured_before_first_kind", result.unmeasured_before}}},
                     {"first_bits", of_node(result.first_bits)},
                     {"first_kind", of_node(result.first_kind)},
                     {"points", points},
                     {"structure", result.structure},
                     {"judged", judged}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
