#include "traces/manifest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// In the order of the enumerations in trace.h.
constexpr std::array<const char*, 4> kKeeps = {"off", "digest", "flagged", "full"};
constexpr std::array<const char*, kRoundingContracts> kContracts = {"fused",
                                                                    "hf",
                                                                    "eager",
                                                                    "unrounded_sum",
                                                                    "hf_unrounded_sum",
                                                                    "bias_after_store",
                                                                    "scores_rounded",
                                                                    "query_rounded",
                                                                    "products_rounded",
                                                                    "tables_rounded",
                                                                    "tf32",
                                                                    "operands_bf16",
                                                                    "operands_fp16"};

// Invalid UTF-8 (a command line may hold any bytes) is replaced rather than refused.
std::string dumped(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json contracts_object(const Manifest& manifest) {
  ordered_json object = ordered_json::object();
  for (const auto& [point, contract] : manifest.contracts) object[point] = name_of(contract);
  return object;
}

// A misspelt point would leave the real one undeclared, and nobody would be told.
std::map<std::string, RoundingContract> contracts_from(const json& object,
                                                       const std::string& file) {
  std::map<std::string, RoundingContract> contracts;
  for (const auto& [point, name] : object.items()) {
    check(find_point(point) != nullptr,
          "{} declares where '{}' rounds, which is no point: lockstep points lists them", file,
          point);
    contracts[point] = contract_from(name.get<std::string>());
  }
  return contracts;
}

ordered_json draw_object(const std::optional<DrawInfo>& draw) {
  if (!draw) return nullptr;
  return {{"repetition_penalty", draw->repetition_penalty},
          {"temperature", draw->temperature},
          {"top_k", draw->top_k},
          {"top_p", draw->top_p},
          {"min_p", draw->min_p},
          {"seed", draw->seed},
          {"sample", draw->sample}};
}

std::optional<DrawInfo> draw_from(const json& object) {
  if (object.is_null()) return {};
  return DrawInfo{.repetition_penalty = object.at("repetition_penalty"),
                  .temperature = object.at("temperature"),
                  .top_k = object.at("top_k"),
                  .top_p = object.at("top_p"),
                  .min_p = object.at("min_p"),
                  .seed = object.at("seed"),
                  .sample = object.at("sample")};
}

ordered_json request_object(const RequestInfo& request) {
  return {{"id", request.id},           {"name", request.name},
          {"prompt", request.prompt},   {"forced", request.forced},
          {"tokens", request.tokens},   {"argmax", request.argmax},
          {"sampled", request.sampled}, {"draw", draw_object(request.draw)},
          {"max_new", request.max_new}, {"stopped", request.stopped}};
}

RequestInfo request_from(const json& object) {
  return {.id = object.at("id"),
          .name = object.at("name"),
          .prompt = object.at("prompt"),
          .forced = object.at("forced"),
          .tokens = object.at("tokens"),
          .argmax = object.at("argmax"),
          .sampled = object.at("sampled"),
          .draw = draw_from(object.value("draw", json())),
          .max_new = object.value("max_new", int64_t{-1}),
          .stopped = object.value("stopped", false)};
}

// Runs `read`; what JSON complains of becomes a sentence about the file.
template <typename Read>
auto reading(const std::string& file, Read read) {
  try {
    return read();
  } catch (const json::exception& error) {
    fail("{}: a manifest of a trace was wanted, but it is damaged or something else ({})", file,
         error.what());
  }
}

}  // namespace

Keep keep_from(const std::string& name) {
  for (size_t i = 0; i < kKeeps.size(); ++i)
    if (name == kKeeps[i]) return static_cast<Keep>(i);
  fail("'{}' is no level of a trace: use off, digest, flagged or full", name);
}

const char* name_of(Keep keep) { return kKeeps[static_cast<size_t>(keep)]; }

RoundingContract contract_from(const std::string& name) {
  for (size_t i = 0; i < kContracts.size(); ++i)
    if (name == kContracts[i]) return static_cast<RoundingContract>(i);
  fail("'{}' is no rounding contract: use {}", name, fmt::join(kContracts, ", "));
}

const char* name_of(RoundingContract contract) { return kContracts[static_cast<size_t>(contract)]; }

void check_format(const std::string& format, const std::string& version, const std::string& file) {
  check(format == kFormat, "{}: a trace of format '{}' was wanted, it says it is '{}'", file,
        kFormat, format);
  check(
      version == kFormatVersion || std::ranges::count(kFormatVersionsBefore, version) > 0,
      "{}: a trace of format version {} was wanted, found {}: read it with the version that wrote "
      "it, or write it anew",
      file, kFormatVersion, version);
}

int layers_from(int64_t layers, const std::string& file) {
  check(
      layers >= 0 && layers <= kMostLayers,
      "{}: a model of 0 to {} layers was wanted, it says {}: the file is damaged, write the trace "
      "anew",
      file, kMostLayers, layers);
  return static_cast<int>(layers);
}

std::string json_of(const SavedManifest& saved, Layout layout) {
  const Manifest& m = saved.manifest;
  ordered_json object = {{"format", kFormat},
                         {"format_version", kFormatVersion},
                         {"kind", "manifest"},
                         {"complete", saved.ended()},
                         {"passes", saved.ended() ? ordered_json(saved.passes) : ordered_json()},
                         {"level", name_of(m.keep)},
                         {"layers", m.graph.layers},
                         {"qk_norm", m.graph.qk_norm},
                         {"expert_layers", m.graph.expert_layers},
                         {"rope_tables", m.graph.rope_tables},
                         {"dtype", name_of(m.dtype)},
                         {"selection", m.selection},
                         {"schema", contracts_object(m)},
                         {"provenance", m.provenance},
                         {"requests", ordered_json::array()}};
  for (const RequestInfo& request : m.requests)
    object["requests"].push_back(request_object(request));
  return dumped(object, layout == Layout::pretty ? 2 : -1) + "\n";
}

SavedManifest manifest_from(const std::string& text, const std::string& file) {
  return reading(file, [&] {
    const json object = json::parse(text);
    check_format(object.at("format"), object.at("format_version"), file);
    SavedManifest saved;
    if (object.at("complete").get<bool>()) saved.passes = object.at("passes").get<int64_t>();
    Manifest& m = saved.manifest;
    m.keep = keep_from(object.at("level"));
    m.graph.layers = layers_from(object.at("layers"), file);
    m.graph.qk_norm = object.at("qk_norm");
    m.graph.expert_layers = object.at("expert_layers").get<std::vector<int>>();
    m.graph.rope_tables = object.value("rope_tables", false);
    m.dtype = dtype_from(object.at("dtype").get<std::string>());
    m.selection = object.at("selection");
    m.contracts = contracts_from(object.at("schema"), file);
    m.provenance = object.at("provenance").get<std::map<std::string, std::string>>();
    for (const json& request : object.at("requests")) m.requests.push_back(request_from(request));
    check_requests(m.requests, file);
    return saved;
  });
}

void check_requests(const std::vector<RequestInfo>& requests, const std::string& file) {
  std::set<int32_t> ids;
  for (const RequestInfo& request : requests)
    check(ids.insert(request.id).second,
          "{}: request {} is there twice, and which of them the rows of that number are of is not "
          "known: write the trace anew",
          file, request.id);
}

std::string draw_json_of(const std::optional<DrawInfo>& draw) {
  return draw ? dumped(draw_object(draw), -1) : "";
}

std::optional<DrawInfo> draw_from_json(const std::string& text, const std::string& file) {
  if (text.empty()) return {};
  return reading(file, [&] { return draw_from(json::parse(text)); });
}

std::string contracts_json_of(const Manifest& manifest) {
  return dumped(contracts_object(manifest), -1);
}

std::map<std::string, RoundingContract> contracts_from_json(const std::string& text,
                                                            const std::string& file) {
  return reading(file, [&] { return contracts_from(json::parse(text), file); });
}

}  // namespace lockstep
