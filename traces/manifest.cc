#include "traces/manifest.h"

#include <array>
#include <nlohmann/json.hpp>

#include "kernels/check.h"

namespace lockstep {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// In the order of the enumerations in trace.h.
constexpr std::array<const char*, 4> kKeeps = {"off", "digest", "flagged", "full"};
constexpr std::array<const char*, 3> kSchemas = {"fused", "hf", "eager"};

// Invalid UTF-8 (a command line may hold any bytes) is replaced rather than refused.
std::string dumped(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json schema_object(const Manifest& manifest) {
  ordered_json object = ordered_json::object();
  for (const auto& [point, schema] : manifest.schema) object[point] = name_of(schema);
  return object;
}

std::map<std::string, Schema> schemas_from(const json& object) {
  std::map<std::string, Schema> schemas;
  for (const auto& [point, name] : object.items())
    schemas[point] = schema_from(name.get<std::string>());
  return schemas;
}

ordered_json request_object(const RequestInfo& request) {
  return {{"id", request.id},          {"name", request.name},     {"prompt", request.prompt},
          {"forced", request.forced},  {"tokens", request.tokens}, {"argmax", request.argmax},
          {"sampled", request.sampled}};
}

RequestInfo request_from(const json& object) {
  return {.id = object.at("id"),
          .name = object.at("name"),
          .prompt = object.at("prompt"),
          .forced = object.at("forced"),
          .tokens = object.at("tokens"),
          .argmax = object.at("argmax"),
          .sampled = object.at("sampled")};
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

Schema schema_from(const std::string& name) {
  for (size_t i = 0; i < kSchemas.size(); ++i)
    if (name == kSchemas[i]) return static_cast<Schema>(i);
  fail("'{}' is no schema: use fused, hf or eager", name);
}

const char* name_of(Schema schema) { return kSchemas[static_cast<size_t>(schema)]; }

void check_format(const std::string& format, const std::string& version, const std::string& file) {
  check(format == kFormat, "{}: a trace of format '{}' was wanted, it says it is '{}'", file,
        kFormat, format);
  check(
      version == kFormatVersion || version == kFormatVersionBefore,
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
                         {"dtype", name_of(m.dtype)},
                         {"selection", m.selection},
                         {"schema", schema_object(m)},
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
    m.dtype = dtype_from(object.at("dtype").get<std::string>());
    m.selection = object.at("selection");
    m.schema = schemas_from(object.at("schema"));
    m.provenance = object.at("provenance").get<std::map<std::string, std::string>>();
    for (const json& request : object.at("requests")) m.requests.push_back(request_from(request));
    return saved;
  });
}

std::string schema_json_of(const Manifest& manifest) { return dumped(schema_object(manifest), -1); }

std::map<std::string, Schema> schema_from_json(const std::string& text, const std::string& file) {
  return reading(file, [&] { return schemas_from(json::parse(text)); });
}

}  // namespace lockstep
