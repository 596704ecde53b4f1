// The manifest of a trace as JSON and as columns of HDF5: what ran, on which graph, with which
// rounding contracts, which requests came in and what they became. Both forms are read back here,
// with every field checked, and an unknown version is refused with what to do.
#include "traces/manifest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/files/json.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kRemedy = "the file is damaged or no trace, write the trace anew";

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
std::map<std::string, RoundingContract> contracts_from(const JsonValue& object) {
  std::map<std::string, RoundingContract> contracts;
  for (const auto& [point, name] : object.fields()) {
    if (find_point(point) == nullptr)
      fail("{} says where a tensor is rounded that is no point: lockstep points lists them",
           name.where());
    const std::string& word = name.text();
    try {
      contracts.emplace(point, contract_from(word));
    } catch (const Error& error) {  // not by meaning_of: the field is sought in the whole text
      fail("{}: {}", name.where(), error.what());
    }
  }
  return contracts;
}

// How a request draws; null where it takes the most likely token.
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

std::optional<DrawInfo> draw_from(const JsonValue& draw) {
  if (!draw) return {};
  return DrawInfo{.repetition_penalty = draw["repetition_penalty"].number(),
                  .temperature = draw["temperature"].number(),
                  .top_k = draw["top_k"].whole<int64_t>(),
                  .top_p = draw["top_p"].number(),
                  .min_p = draw["min_p"].number(),
                  .seed = draw["seed"].whole<uint64_t>(),
                  .sample = draw["sample"].whole<uint32_t>()};
}

// A request and what became of it.
ordered_json request_object(const RequestInfo& request) {
  return {{"id", request.id},           {"name", request.name},
          {"prompt", request.prompt},   {"forced", request.forced},
          {"tokens", request.tokens},   {"argmax", request.argmax},
          {"sampled", request.sampled}, {"draw", draw_object(request.draw)},
          {"max_new", request.max_new}, {"stopped", request.stopped}};
}

RequestInfo request_from(const JsonValue& request) {
  const JsonValue max_new = request["max_new"], stopped = request["stopped"];
  return {.id = request["id"].whole<int32_t>(),
          .name = request["name"].text(),
          .prompt = request["prompt"].wholes<int32_t>(),
          .forced = request["forced"].wholes<int32_t>(),
          .tokens = request["tokens"].wholes<int32_t>(),
          .argmax = request["argmax"].wholes<int32_t>(),
          .sampled = request["sampled"].flag(),
          .draw = draw_from(request["draw"]),
          .max_new = max_new.is_missing() ? -1 : max_new.whole<int64_t>(),
          .stopped = !stopped.is_missing() && stopped.flag()};
}

// The nodes in order, each with the numbers of those that it reads.
ordered_json graph_array(const Graph& graph) {
  ordered_json nodes = ordered_json::array();
  for (size_t i = 0; i < graph.places().size(); ++i) {
    const Place& place = graph.places()[i];
    nodes.push_back(
        {{"point", place.point->name}, {"layer", place.layer}, {"inputs", graph.inputs(i)}});
  }
  return nodes;
}

GraphColumns graph_columns_from(const JsonValue& nodes) {
  GraphColumns columns;
  for (const JsonValue& node : nodes.items()) {
    columns.point.push_back(node["point"].text());
    columns.layer.push_back(node["layer"].whole<int32_t>());
    std::ranges::copy(node["inputs"].wholes<int32_t>(), std::back_inserter(columns.input));
    columns.input_edges.push_back(std::ssize(columns.input));
  }
  return columns;
}

}  // namespace

TraceLevel trace_level_from(const std::string& name) {
  return value_named<TraceLevel>(name, "level of a trace");
}

RoundingContract contract_from(const std::string& name) {
  return value_named<RoundingContract>(name, "rounding contract");
}

void check_format(const std::string& format, const std::string& version, const std::string& file) {
  check(format == kFormat, "{}: a trace of format '{}' was wanted, it says it is '{}'", file,
        kFormat, format);
  // Version 2.0 differs in where some columns of the index lie (segment.cc), 2.1 in its journal,
  // and both are read too.
  check(version == kFormatVersion || version == "2.1" || version == "2.0",
        "{}: a trace of format version {} was wanted, found {}: read it with the version that "
        "wrote it, or write it anew",
        file, kFormatVersion, version);
}

GraphColumns columns_of(const Graph& graph) {
  GraphColumns columns;
  for (size_t i = 0; i < graph.places().size(); ++i) {
    columns.point.emplace_back(graph.places()[i].point->name);
    columns.layer.push_back(graph.places()[i].layer);
    const std::span<const int> inputs = graph.inputs(i);
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
    // The graph itself refuses a node that reads one after it; its sentence gets the file's name
    // here.
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

SavedManifest manifest_from(std::string_view text, const std::string& file) {
  const JsonDocument document(text, {file, kRemedy, kMostManifest});
  const JsonValue object = document.root();
  const std::string& format = object["format"].text();
  check_format(format, object["format_version"].text(), file);
  SavedManifest saved;
  if (object["complete"].flag()) saved.passes = object["passes"].whole<int64_t>();
  Manifest& m = saved.manifest;
  m.level = meaning_of(object["level"].text(), file, trace_level_from);
  m.graph = graph_from(graph_columns_from(object["graph"]), file);
  m.dtype = meaning_of(object["dtype"].text(), file, dtype_from);
  m.selection = object["selection"].text();
  m.contracts = contracts_from(object["schema"]);
  m.provenance = object["provenance"].text_fields();
  for (const JsonValue& request : object["requests"].items())
    m.requests.push_back(request_from(request));
  check_requests(m.requests, file);
  return saved;
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
  return draw_from(JsonDocument(text, {file + ": requests/draw", kRemedy}).root());
}

std::string contracts_json_of(const Manifest& manifest) {
  return dumped(contracts_object(manifest), -1);
}

std::map<std::string, RoundingContract> contracts_from_json(const std::string& text,
                                                            const std::string& file) {
  return contracts_from(JsonDocument(text, {file + ": schema_json", kRemedy}).root());
}

}  // namespace lockstep
