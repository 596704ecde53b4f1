// The names of the fields are those of tools/schemas/replay.schema.json; numbers that JSON lacks
// are written as json_number() does.
#include <nlohmann/json.hpp>

#include "src/judge/ledger.h"
#include "src/replay/replay.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json optional_number(const std::optional<double>& x) { return x ? json_number<Json>(*x) : Json(); }

Json worst_json(const std::optional<TrialResult::Element>& worst) {
  if (!worst) return {};
  return {{"pass", worst->pass},
          {"request", worst->request},
          {"index", worst->index},
          {"want", json_number<Json>(worst->want)},
          {"got", json_number<Json>(worst->got)},
          {"budgets", json_number<Json>(worst->budgets)}};
}

Json looks_like_json(const std::vector<Finding::LooksLike>& all) {
  Json json = Json::array();
  for (const Finding::LooksLike& like : all)
    json.push_back({{"says", like.says},
                    {"elements", like.elements},
                    {"of_elements", like.of_elements},
                    {"nodes", like.nodes},
                    {"of_nodes", like.of_nodes}});
  return json;
}

Json trial_json(const TrialResult& trial) {
  return {{"by", trial.name},
          {"nodes",
           {{"expected", trial.expected},
            {"judged", trial.judged},
            {"bitwise", trial.bitwise},
            {"wrong", trial.wrong}}},
          {"contract", trial.contract},
          {"rows", trial.rows},
          {"equal_rows", trial.equal_rows},
          {"worst", worst_json(trial.worst)},
          {"ulps", optional_number(trial.ulps)},
          {"seconds", optional_number(trial.seconds)},
          {"rule", trial.rule},
          {"reason", trial.reason},
          {"looks_like", looks_like_json(trial.looks_like)}};
}

}  // namespace

std::string report_json(const ReplayResult& result) {
  Json trials = Json::array();
  for (const TrialResult& trial : result.trials) trials.push_back(trial_json(trial));
  static constexpr const char* kVerdicts[] = {"clean", "diverged", "inconclusive"};
  const Json json = {{"format", "lockstep-replay"},
                     {"format_version", "1.0"},
                     {"verdict", kVerdicts[exit_status(result)]},
                     {"story", story_of(result)},
                     {"source", result.source},
                     {"model", result.model},
                     {"layer", result.place.layer < 0 ? Json() : Json(result.place.layer)},
                     {"point", result.place.point->name},
                     {"dtype", name_of(result.dtype)},
                     {"device", result.device},
                     {"passes", result.passes},
                     {"of_passes", result.of_passes},
                     {"rows", result.rows},
                     {"lacking", result.lacking},
                     {"unlike_run", result.unlike_run},
                     {"trials", trials}};
  return json.dump(2);
}

}  // namespace lockstep
