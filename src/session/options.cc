#include "src/session/options.h"

#include <fmt/format.h>

#include "src/judge/presets.h"

namespace lockstep {

DType dtype_of(const ModelOptions& options, const ModelConfig& config) {
  return options.dtype == "auto" ? config.dtype : dtype_from(options.dtype);
}

EngineOptions engine_options_of(const ModelOptions& options, const ModelConfig& config) {
  EngineOptions engine = options.engine;
  engine.dtype = dtype_of(options, config);
  return engine;
}

Selection selection_of(const ObserveOptions& options) {
  return {options.points, options.layers, options.positions, ""};
}

std::optional<std::map<std::string, RoundingContract>> contracts_of(const std::string& schema) {
  if (schema.empty()) return {};
  if (schema == "auto") return std::map<std::string, RoundingContract>();
  return contracts_of_preset(schema);
}

void ask_for(const RoundingOptions& options, JudgeOptions& judge) {
  judge.contracts = contracts_of(options.schema);
  for (const std::string& text : options.rounding) judge.rounding.push_back(rounding_from(text));
  std::vector<std::string> asked = options.rounding;
  if (!options.schema.empty()) asked.insert(asked.begin(), options.schema);
  judge.asked = fmt::format("{}", fmt::join(asked, ", "));
}

std::optional<std::string> accumulator_of(const std::string& accumulator) {
  if (accumulator.empty()) return {};
  return accumulator;
}

Limits limits_of(const std::string& path) { return path.empty() ? Limits{} : Limits::read(path); }

}  // namespace lockstep
