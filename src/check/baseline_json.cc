// The baseline's file. It is written by hand, line by line, because a review reads its changes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/files/json.h"
#include "src/check/baseline.h"
#include "traces/json_number.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kBaselineFormat[] = "lockstep-baseline";
constexpr char kBaselineVersion[] = "1.0";
constexpr size_t kMostBaseline = size_t{64} << 20;  // bytes
constexpr char kRemedy[] =
    "it is damaged, or no baseline of lockstep check: make it again with --update, from a run that "
    "you trust";

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
std::vector<Hash> hashes_from(const JsonValue& json) {
  constexpr size_t kDigits = 2 * sizeof(Hash);
  const std::string& text = json.text();
  if (text.size() % kDigits != 0 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    json.refuse("a list of hashes");
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

Baseline::OpClass class_from(std::string_view name, const JsonValue& json) {
  const auto kind = std::ranges::find(kOpKinds, name, &OpKindRow::name);
  if (kind == kOpKinds.end()) json.refuse("the name of an op class");
  Baseline::OpClass row{.op = kind->kind};
  for (const ReachedField& field : kFields) {
    row.reached.*field.value = json[field.name].real();
    if (!(row.reached.*field.value >= 0)) json[field.name].refuse("a number of at least 0");
    if (json["limits"].is_missing()) continue;
    const JsonValue limit = json["limits"][field.name];
    row.limits.*field.limit = limit.real();
    if (!(limit.real() > 0)) limit.refuse("a number above 0");
  }
  return row;
}

Json of_point(const Baseline::PointRow& row) {
  return {{"layers", row.layers},
          {"nodes", row.nodes},
          {"excluded", row.excluded},
          {"bits", hex_of(row.bits)}};
}

Baseline::PointRow point_from(std::string_view name, const JsonValue& json) {
  const Point* point = find_point(name);
  if (point == nullptr) json.refuse("the name of a point");
  Baseline::PointRow row{.point = point,
                         .layers = json["layers"].whole<int32_t>(),
                         .nodes = json["nodes"].whole<int64_t>(),
                         .excluded = json["excluded"].whole<int64_t>(),
                         .bits = hashes_from<uint32_t>(json["bits"])};
  if (std::ssize(row.bits) != (point->is_cache() ? 0 : row.layers))
    json["bits"].refuse(fmt::format("hashes of {} layers", row.layers));
  return row;
}

Json of_text(const Baseline::Text& text) {
  Json json = {
      {"name", text.name}, {"asks", text.asks}, {"prompt", text.prompt}, {"tokens", text.tokens}};
  if (!text.argmax.empty()) json["argmax"] = text.argmax;
  json["bits"] = hex_of(text.bits);
  return json;
}

Baseline::Text text_from(const JsonValue& json) {
  Baseline::Text text{.name = json["name"].text(),
                      .asks = json["asks"].text(),
                      .prompt = json["prompt"].whole<int64_t>(),
                      .tokens = json["tokens"].wholes<int32_t>(),
                      .bits = hashes_from<uint16_t>(json["bits"])};
  if (!json["argmax"].is_missing()) text.argmax = json["argmax"].wholes<int32_t>();
  const int64_t positions = text.prompt + std::ssize(text.tokens) - 1;
  if (text.tokens.empty() || std::ssize(text.bits) != positions ||
      (!text.argmax.empty() && text.argmax.size() != text.tokens.size()))
    json.refuse(fmt::format("a request with tokens, and hashes of {} positions", positions));
  return text;
}

Baseline baseline_from(const JsonValue& json) {
  if (!json["format"].is(kBaselineFormat)) json["format"].refuse(kBaselineFormat);
  if (!json["format_version"].is(kBaselineVersion)) json["format_version"].refuse(kBaselineVersion);
  Baseline baseline{.model = json["model"].text(),
                    .model_xxh3 = json["model_xxh3"].text(),
                    .weights_xxh3 = json["weights_xxh3"].is_missing() ? std::string()
                                                                      : json["weights_xxh3"].text(),
                    .dtype = meaning_of(json["dtype"].text(), json["dtype"].where(), dtype_from),
                    .provenance = json["provenance"].text_fields(),
                    .untested = json["untested"].texts()};
  for (const auto& [name, row] : json["classes"].fields())
    baseline.classes.push_back(class_from(name, row));
  for (const auto& [name, row] : json["points"].fields())
    baseline.points.push_back(point_from(name, row));
  std::ranges::sort(baseline.classes, {}, &Baseline::OpClass::op);
  std::ranges::sort(baseline.points, {},
                    [](const Baseline::PointRow& row) { return row.point->order(); });
  for (const JsonValue& text : json["texts"].items()) baseline.texts.push_back(text_from(text));
  if (baseline.classes.empty() || baseline.points.empty() || baseline.texts.empty())
    json.refuse("op classes, points and texts");
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
  return fmt::format("{{\n  \"format\": \"{}\",\n  \"format_version\": \"{}\"", kBaselineFormat,
                     kBaselineVersion) +
         fact("model", baseline.model) + fact("model_xxh3", baseline.model_xxh3) +
         (baseline.weights_xxh3.empty() ? std::string()
                                        : fact("weights_xxh3", baseline.weights_xxh3)) +
         fact("dtype", std::string(name_of(baseline.dtype))) +
         block_of("provenance", baseline.provenance) + block_of("untested", baseline.untested) +
         block_of("classes", classes) + block_of("points", points) + block_of("texts", texts) +
         "\n}\n";
}

Baseline read_baseline(const std::string& path) {
  return baseline_from(JsonDocument::read(path, kRemedy, kMostBaseline).root());
}

// By how it begins, since one that a merge has damaged is made again, too.
void check_replaceable(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  std::string begin(1024, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), std::ssize(begin));
  begin.resize(file.gcount());
  check(begin.empty() || begin.find(kBaselineFormat) != std::string::npos,
        "{} is no baseline of lockstep check, and --update replaces nothing else: name another "
        "file, or remove that one",
        path);
}

}  // namespace lockstep
