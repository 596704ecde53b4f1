#include "traces/manifest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/check.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// In the order of the enumerations in trace.h.
constexpr std::array<const char*, 4> kTraceLevels = {"off", "digest", "flagged", "full"};
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

ordered_json graph_array(const Graph& graph) {
  ordered_json nodes = ordered_json::array();
  for (size_t i = 0; i < graph.places().size(); ++i) {
    const Place& place = graph.places()[i];
    nodes.push_back({{"point", place.point->name},
                     {"layer", place.layer},
                     {"inputs", graph.inputs(static_cast<int>(i))}});
  }
  return nodes;
}

GraphColumns graph_columns_from(const json& nodes) {
  GraphColumns columns;
  for (const json& node : nodes) {
    columns.point.push_back(node.at("point"));
    columns.layer.push_back(int_from(node.at("layer")));
    for (const json& input : node.at("inputs")) columns.input.push_back(int_from(input));
    columns.input_edges.push_back(std::ssize(columns.input));
  }
  return columns;
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

TraceLevel trace_level_from(const std::string& name) {
  for (size_t i = 0; i < kTraceLevels.size(); ++i)
    if (name == kTraceLevels[i]) return static_cast<TraceLevel>(i);
  fail("'{}' is no level of a trace: use off, digest, flagged or full", name);
}

const char* name_of(TraceLevel level) { return kTraceLevels[static_cast<size_t>(level)]; }

RoundingContract contract_from(const std::string& name) {
  for (size_t i = 0; i < kContracts.size(); ++i)
    if (name == kContracts[i]) return static_cast<RoundingContract>(i);
  fail("'{}' is no rounding contract: use {}", name, fmt::join(kContracts, ", "));
}

const char* name_of(RoundingContract contract) { return kContracts[static_cast<size_t>(contract)]; }

void check_format(const std::string& format, const std::string& version, const std::string& file) {
  check(format == kFormat, "{}: a trace of format '{}' was wanted, it says it is '{}'", file,
        kFormat, format);
  check(version == kFormatVersion,
        "{}: a trace of format version {} was wanted, found {}: read it with the version that "
        "wrote it, or write it anew",
        file, kFormatVersion, version);
}

GraphColumns columns_of(const Graph& graph) {
  GraphColumns columns;
  for (size_t i = 0; i < graph.places().size(); ++i) {
    columns.point.emplace_back(graph.places()[i].point->name);
    columns.layer.push_back(graph.places()[i].layer);
    const std::span<const int> inputs = graph.inputs(static_cast<int>(i));
    columns.input.insert(columns.input.end(), inputs.begin(), inputs.end());
    columns.input_edges.push_back(std::ssize(columns.input));
  }
  return columns;
}

Graph graph_from(const GraphColumns& columns, const std::string& file) {
  const size_t nodes = columns.point.size();
  check(columns.layer.size() == nodes && columns.input_edges.size() == nodes + 1 &&
            columns.input_edges.front() == 0 && std::ranges::is_sorted(columns.input_edges) &&
            columns.input_edges.back() == std::ssize(columns.input),
        "{}: the columns of its graph do not fit each other: the file is damaged, write the trace "
        "anew",
        file);
  Graph graph;
  for (size_t i = 0; i < nodes; ++i) {
    const Point* point = find_point(columns.point[i]);
    check(point != nullptr,
          "{}: its graph has the point '{}', which this version does not know: it was renamed or "
          "the trace is of another version (see lockstep points)",
          file, columns.point[i]);
    check(-1 <= columns.layer[i] && columns.layer[i] < kMostLayers,
          "{}: a model of at most {} layers was wanted, its graph has layer {}: the file is "
          "damaged, write the trace anew",
          file, kMostLayers, columns.layer[i]);
    try {
      graph.add({point, columns.layer[i]}, {columns.input.begin() + columns.input_edges[i],
                                            columns.input.begin() + columns.input_edges[i + 1]});
    } catch (const Error& error) {
      fail("{}: {}: the file is damaged, write the trace anew", file, error.what());
    }
  }
  return graph;
}

std::string json_of(const SavedManifest& saved, Layout layout) {
  const Manifest& m = saved.manifest;
  ordered_json object = {{"format", kFormat},
                         {"format_version", kFormatVersion},
                         {"kind", "manifest"},
                         {"complete", saved.ended()},
                         {"passes", saved.ended() ? ordered_json(saved.passes) : ordered_json()},
                         {"level", name_of(m.level)},
                         {"graph", graph_array(m.graph)},
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
    m.level = trace_level_from(object.at("level"));
    m.graph = graph_from(graph_columns_from(object.at("graph")), file);
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
