#include "src/session/options.h"

#include <fmt/format.h>

#include <charconv>

#include "kernels/base/check.h"
#include "src/judge/presets.h"

namespace lockstep {

std::vector<NamedFile> files_read_by(const ModelOptions& options) {
  return {{"--model", options.model},
          {"--requests", options.requests},
          {"--force-from", options.force_from},
          {"--step", options.instructions.step},
          {"--ops", options.ops}};
}

std::vector<NamedFile> checked_files(const ModelOptions& options,
                                     const std::vector<NamedFile>& others) {
  std::vector<NamedFile> all = files_read_by(options);
  all.insert(all.end(), others.begin(), others.end());
  const NamedFile timeline{"--timeline", options.instructions.timeline};
  check_output(timeline, all);
  all.push_back(timeline);
  return all;
}

DType ModelOptions::dtype_for(const ModelConfig& config) const {
  return dtype == "auto" ? config.dtype : dtype_from(dtype);
}

EngineOptions ModelOptions::engine_for(const ModelConfig& config) const {
  EngineOptions decided = engine;
  decided.dtype = dtype_for(config);
  return decided;
}

Selection ObserveOptions::selection() const { return {points, layers, positions, ""}; }

RowsToJudge rows_to_judge(const std::string& text, const std::string& needs_all) {
  if (text.empty()) return {};
  RowsToJudge rows;
  const char* const end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, rows.most);
  if (error == std::errc() && at != end && *at == ':')
    std::tie(at, error) = std::pair(std::from_chars(at + 1, end, rows.seed).ptr, error);
  check(error == std::errc() && at == end && text.back() != ':' && rows.most > 0,
        "--judge-rows is a number of rows of a node, as 64, or with a seed, as 64:7; found \"{}\"",
        text);
  check(needs_all.empty(),
        "{} needs all rows of every node, and --judge-rows {} leaves some out: "
        "give one of the two",
        needs_all, text);
  return rows;
}

std::optional<std::map<std::string, RoundingContract>> contracts_of(const std::string& schema) {
  if (schema.empty()) return {};
  if (schema == "auto") return std::map<std::string, RoundingContract>();
  return contracts_of_preset(schema);
}

void ask_for(const RoundingOptions& options, JudgeOptions& judge) {
  if (!options.schema.empty()) judge.contracts = contracts_of(options.schema);
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
