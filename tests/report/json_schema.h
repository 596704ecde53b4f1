// JSON held to the documents in tools/schemas.
#pragma once

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/places.h"

namespace lockstep {

using Json = nlohmann::json;

// tools/schemas/<kind>.schema.json.
inline Json schema_of(const std::string& kind) {
  std::ifstream file(source_path("tools/schemas/" + kind + ".schema.json"));
  return Json::parse(file);
}

inline bool is_of_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return type == "boolean" && value.is_boolean();
}

// The part of JSON Schema that these documents use. Returns what is wrong, "" when
// nothing is.
inline std::string violation(const Json& value, const Json& rule, const Json& root,
                             std::string at = "$") {
  static const std::set<std::string> known = {
      "$schema",    "$id",   "$defs",  "$ref",  "title",    "description",
      "type",       "enum",  "const",  "anyOf", "required", "additionalProperties",
      "properties", "items", "minimum"};
  for (const auto& [keyword, unused] : rule.items())
    if (!known.contains(keyword)) return at + ": the schema uses unknown keyword " + keyword;
  if (rule.contains("$ref")) {
    const std::string ref = rule["$ref"].get<std::string>().substr(1);
    return violation(value, root.at(Json::json_pointer(ref)), root, at);
  }
  if (rule.contains("anyOf")) {
    std::string all;
    for (const Json& option : rule["anyOf"]) {
      const std::string wrong = violation(value, option, root, at);
      if (wrong.empty()) return "";
      all += wrong + " | ";
    }
    return all;
  }
  if (rule.contains("type") && !is_of_type(value, rule["type"])) return at + ": type";
  if (rule.contains("const") && value != rule["const"]) return at + ": const";
  if (rule.contains("enum") && std::ranges::count(rule["enum"], value) == 0) return at + ": enum";
  if (rule.contains("minimum") && value < rule["minimum"]) return at + ": minimum";
  if (value.is_object()) {
    for (const Json& name : rule.value("required", Json::array()))
      if (!value.contains(name)) return at + ": lacks " + name.get<std::string>();
    for (const auto& [name, inner] : value.items()) {
      const Json properties = rule.value("properties", Json::object());
      const Json other = rule.value("additionalProperties", Json(true));
      std::string wrong;
      if (properties.contains(name))
        wrong = violation(inner, properties[name], root, at + "." + name);
      else if (other.is_object())
        wrong = violation(inner, other, root, at + "." + name);
      else if (other == false)
        wrong = at + ": unknown " + name;
      if (!wrong.empty()) return wrong;
    }
  }
  if (value.is_array() && rule.contains("items"))
    for (size_t i = 0; i < value.size(); ++i)
      if (std::string wrong =
              violation(value[i], rule["items"], root, at + "[" + std::to_string(i) + "]");
          !wrong.empty())
        return wrong;
  return "";
}

}  // namespace lockstep
