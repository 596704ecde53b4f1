// The baseline's file. It is written by hand, line by line, because a review reads its changes.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "src/check/baseline.h"
#include "traces/disk.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "lockstep-baseline";
constexpr char kVersion[] = "1.0";

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The members of an object or the items of a list, each in a line of its own.
std::string block_of(const std::string& name, const Json& json) {
  std::string text;
  for (auto at = json.begin(); at != json.end(); ++at) {
    text += text.empty() ? "\n    " : ",\n    ";
    if (json.is_object()) text += dump(Json(at.key())) + ": ";
    text += dump(at.value());
  }
  const char* const ends = json.is_object() ? "{}" : "[]";
  return fmt::format(",\n  {}: {}{}{}{}", dump(Json(name)), ends[0], text,
                     text.empty() ? "" : "\n  ", ends[1]);
}

// Fixed-width hexadecimal digits, one after another.
template <typename Hash>
std::string hex_of(const std::vector<Hash>& hashes) {
  std::string text;
  for (const Hash hash : hashes) text += fmt::format("{:0{}x}", hash, 2 * sizeof(Hash));
  return text;
}

template <typename Hash>
std::vector<Hash> hashes_from(const Json& json) {
  constexpr size_t kDigits = 2 * sizeof(Hash);
  const std::string text = json;
  check(
      text.size() % kDigits == 0 && text.find_first_not_of("0123456789abcdef") == std::string::npos,
      "'{}' is no list of hashes", text);
  std::vector<Hash> hashes;
  for (size_t i = 0; i < text.size(); i += kDigits)
    hashes.push_back(static_cast<Hash>(std::stoul(text.substr(i, kDigits), nullptr, 16)));
  return hashes;
}

struct ReachedField {
  const char* name;
  double Reached::*value;
  double OpLimits::*limit;
};
constexpr ReachedField kFields[] = {{"T1_inner", &Reached::inner, &OpLimits::inner},
                                    {"T2_T4", &Reached::rms, &OpLimits::rms},
                                    {"T3", &Reached::share, &OpLimits::share},
                                    {"T5_gain", &Reached::gain, &OpLimits::gain}};

Json of_class(const Baseline::OpClass& row) {
  Json json = Json::object(), limits = Json::object();
  for (const ReachedField& field : kFields) {
    json[field.name] = row.reached.*field.value;
    limits[field.name] = json_number<Json>(row.limits.*field.limit);
  }
  if (!(row.limits == OpLimits{})) json["limits"] = limits;
  return json;
}

Baseline::OpClass class_from(const std::string& name, const Json& json) {
  const auto kind = std::ranges::find(kOpKinds, name, &OpKindRow::name);
  check(kind != kOpKinds.end(), "'{}' is no op class", name);
  Baseline::OpClass row{.op = kind->kind};
  for (const ReachedField& field : kFields) {
    row.reached.*field.value = double_from(json.at(field.name));
    check(row.reached.*field.value >= 0, "{} of {} is below 0", field.name, name);
    if (!json.contains("limits")) continue;
    double& limit = row.limits.*field.limit;
    limit = double_from(json.at("limits").at(field.name));
    check(limit > 0, "the limit {} of {} is not above 0", field.name, name);
  }
  return row;
}

Json of_point(const Baseline::PointRow& row) {
  return {{"layers", row.layers},
          {"nodes", row.nodes},
          {"excluded", row.excluded},
          {"bits", hex_of(row.bits)}};
}

Baseline::PointRow point_from(const std::string& name, const Json& json) {
  const Point* point = find_point(name);
  check(point != nullptr, "'{}' is no point", name);
  Baseline::PointRow row{.point = point,
                         .layers = int_from(json.at("layers")),
                         .nodes = json.at("nodes"),
                         .excluded = json.at("excluded"),
                         .bits = hashes_from<uint32_t>(json.at("bits"))};
  check(std::ssize(row.bits) == (point->is_cache() ? 0 : row.layers),
        "{} has {} layers and hashes of {}", name, row.layers, row.bits.size());
  return row;
}

Json of_text(const Baseline::Text& text) {
  Json json = {
      {"name", text.name}, {"asks", text.asks}, {"prompt", text.prompt}, {"tokens", text.tokens}};
  if (!text.argmax.empty()) json["argmax"] = text.argmax;
  json["bits"] = hex_of(text.bits);
  return json;
}

std::vector<int32_t> tokens_from(const Json& json) {
  std::vector<int32_t> tokens;
  for (const Json& token : json) tokens.push_back(int_from(token));
  return tokens;
}

Baseline::Text text_from(const Json& json) {
  Baseline::Text text{.name = json.at("name"),
                      .asks = json.at("asks"),
                      .prompt = json.at("prompt"),
                      .tokens = tokens_from(json.at("tokens")),
                      .bits = hashes_from<uint16_t>(json.at("bits"))};
  if (json.contains("argmax")) text.argmax = tokens_from(json.at("argmax"));
  const int64_t positions = text.prompt + std::ssize(text.tokens) - 1;
  check(!text.tokens.empty() && std::ssize(text.bits) == positions &&
            (text.argmax.empty() || text.argmax.size() == text.tokens.size()),
        "a request of {} + {} tokens has hashes of {} positions", text.prompt, text.tokens.size(),
        text.bits.size());
  return text;
}

Baseline baseline_from(const Json& json) {
  check(json.at("format") == kFormat && json.at("format_version") == kVersion,
        "format {} {} was wanted, found {} {}", kFormat, kVersion, json.at("format").dump(),
        json.at("format_version").dump());
  Baseline baseline{.model = json.at("model"),
                    .model_xxh3 = json.at("model_xxh3"),
                    .dtype = dtype_from(json.at("dtype").get<std::string>()),
                    .provenance = json.at("provenance").get<std::map<std::string, std::string>>(),
                    .untested = json.at("untested").get<std::vector<std::string>>()};
  for (const auto& [name, row] : json.at("classes").items())
    baseline.classes.push_back(class_from(name, row));
  for (const auto& [name, row] : json.at("points").items())
    baseline.points.push_back(point_from(name, row));
  for (const Json& text : json.at("texts")) baseline.texts.push_back(text_from(text));
  check(!baseline.classes.empty() && !baseline.points.empty() && !baseline.texts.empty(),
        "it holds {} op classes, {} points and {} texts", baseline.classes.size(),
        baseline.points.size(), baseline.texts.size());
  return baseline;
}

}  // namespace

std::string json_of(const Baseline& baseline) {
  Json classes = Json::object(), points = Json::object(), texts = Json::array();
  for (const Baseline::OpClass& row : baseline.classes) classes[name_of(row.op)] = of_class(row);
  for (const Baseline::PointRow& row : baseline.points)
    points[std::string(row.point->name)] = of_point(row);
  for (const Baseline::Text& text : baseline.texts) texts.push_back(of_text(text));
  const auto fact = [](const char* name, const std::string& value) {
    return fmt::format(",\n  {}: {}", dump(Json(name)), dump(Json(value)));
  };
  return fmt::format("{{\n  \"format\": \"{}\",\n  \"format_version\": \"{}\"", kFormat, kVersion) +
         fact("model", baseline.model) + fact("model_xxh3", baseline.model_xxh3) +
         fact("dtype", std::string(name_of(baseline.dtype))) +
         block_of("provenance", baseline.provenance) + block_of("untested", baseline.untested) +
         block_of("classes", classes) + block_of("points", points) + block_of("texts", texts) +
         "\n}\n";
}

Baseline read_baseline(const std::string& path) {
  const std::string text = read_file(path);
  std::string trouble;
  try {
    return baseline_from(Json::parse(text));
  } catch (const std::exception& error) {  // a Json::exception, an Error
    trouble = error.what();
  }
  fail(
      "{} was wanted to be a baseline of lockstep check, but it is damaged or something else ({}); "
      "make it again with --update, from a run that you trust",
      path, trouble);
}

}  // namespace lockstep
