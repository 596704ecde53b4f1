#include "src/session/options.h"

#include "traces/manifest.h"

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
  std::map<std::string, RoundingContract> all;
  if (schema != "auto")
    for (const Point& p : kPoints) all[std::string(p.name)] = contract_from(schema);
  return all;
}

std::optional<std::string> accumulator_of(const std::string& accumulator) {
  if (accumulator.empty()) return {};
  return accumulator;
}

Limits limits_of(const std::string& path) { return path.empty() ? Limits{} : Limits::read(path); }

}  // namespace lockstep
