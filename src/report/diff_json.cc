// The whole comparison as JSON: schema tools/schemas/diff.schema.json.
#include <nlohmann/json.hpp>

#include "src/report/place_json.h"
#include "src/report/report.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// A field that does not apply is null, never left out: programs read one shape.
Json of_share(const std::optional<DiffResult::Node::Share>& share) {
  if (!share) return nullptr;
  return {{"of", share->of_rows ? "rows" : "elements"},
          {"different", share->different},
          {"compared", share->of},
          {"limit", json_number<Json>(share->limit)}};
}

Json of_node(const std::optional<DiffResult::Node>& node) {
  if (!node) return nullptr;
  return {{"request", node->id.request},
          {"position", node->position},
          {"pass", node->id.pass},
          {"layer", layer_json<Json>(node->id.place)},
          {"point", node->id.place.point->name},
          {"relative", json_number<Json>(node->relative)},
          {"requests", node->requests},
          {"of_element", node->of_element},
          {"same_inputs", node->same_inputs},
          {"share", of_share(node->share)},
          {"limit", json_number<Json>(node->limit)},
          {"measured", node->measured},
          {"reason", node->reason.empty() ? Json(nullptr) : Json(node->reason)}};
}

// Numbers that were not measured are null, and no 0.
Json of_place(const DiffPlace& p) {
  const auto number = [&](double x) { return p.measured > 0 ? json_number<Json>(x) : Json(); };
  return {{"layer", layer_json<Json>(p.place)},
          {"point", p.place.point->name},
          {"rows", p.rows},
          {"equal", p.equal},
          {"by_digest", p.by_digest},
          {"measured", p.measured},
          {"unlike", p.unlike},
          {"difference_rms", number(p.difference_rms)},
          {"rms", number(p.rms)},
          {"ulps", number(p.ulps)}};
}

const char* name_of(DiffResult::Flip::Cause cause) {
  static constexpr const char* kNames[] = {"near_tie", "drawn", "unknown", "chosen"};
  return kNames[static_cast<size_t>(cause)];
}

Json of_flip(const DiffResult::Flip& flip) {
  const bool experts = flip.layer >= 0;
  return {{"request", flip.request},
          {"position", flip.position},
          {"layer", experts ? Json(flip.layer) : Json()},
          {"token_a", experts ? Json() : Json(flip.token_a)},
          {"token_b", experts ? Json() : Json(flip.token_b)},
          {"margin_ulp", flip.margin_ulp ? json_number<Json>(*flip.margin_ulp) : Json()},
          {"cause", name_of(flip.cause)}};
}

Json of_logits(const std::optional<DiffResult::Logits>& logits) {
  if (!logits) return nullptr;
  return {{"rows", logits->rows},
          {"kl_mean", json_number<Json>(logits->kl_mean)},
          {"kl_max", json_number<Json>(logits->kl_max)}};
}

Json of_judgement(const DiffResult::Judgement& j) {
  Json first = nullptr;
  if (j.first) first = {{"layer", layer_json<Json>(*j.first)}, {"point", j.first->point->name}};
  return {{"trace", j.trace},
          {"verdict", name_of(j.verdict)},
          {"story", j.story},
          {"first", first},
          {"contracts", j.contracts}};
}

Json of_trace(const std::string& path, const std::map<std::string, std::string>& provenance) {
  return {{"path", path.empty() ? Json() : Json(path)}, {"provenance", provenance}};
}

// A list in JSON, each element by `of`.
template <typename Parts, typename Of>
Json list_of(const Parts& parts, Of of) {
  Json list = Json::array();
  for (const auto& part : parts) list.push_back(of(part));
  return list;
}

}  // namespace

std::string report_json(const DiffResult& result) {
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
                       {"by_digest", result.by_digest},
                       {"unmeasured_before_first_kind", result.unmeasured_before}}},
                     {"first_bits", of_node(result.first_bits)},
                     {"first_kind", of_node(result.first_kind)},
                     {"first_kind_before_selection", result.kind_before},
                     {"first_doubt", of_node(result.first_doubt)},
                     {"points", list_of(result.places, of_place)},
                     {"flips", list_of(result.flips, of_flip)},
                     {"logits", of_logits(result.logits)},
                     {"structure", result.structure},
                     {"renamed", result.renamed},
                     {"remarks", result.remarks},
                     {"judged", list_of(result.judged, of_judgement)},
                     {"a", of_trace(result.trace_a, result.provenance_a)},
                     {"b", of_trace(result.trace_b, result.provenance_b)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
