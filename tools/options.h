// Options that mean the same in every command that has them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/engine.h"
#include "src/judge/limits.h"
#include "tools/commands.h"
#include "traces/trace.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep {

// Reads a command's arguments into what its options were bound to. False: help was asked for and
// has been printed. Throws Error, with the nearest option, on what the command does not know or
// cannot take. `examples` end the help, a line each.
bool parse(CLI::App& app, Args args, const std::string& examples);

// An option whose value is one of `choices`; `value` is what it is bound to, and its default.
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                        std::vector<std::string> choices, const std::string& help);
void add_threads_option(CLI::App& app, int& threads);        // --threads
void add_device_option(CLI::App& app, std::string& device);  // --device, a text for open_device

// Of everything that runs a model.
struct ModelOptions {
  std::string model;  // folder of the checkpoint
  std::vector<std::string> prompts;
  std::vector<std::string> tokens;  // "1,2,3", one request each
  std::string requests;             // path of a JSONL file
  bool chat = false;                // a prompt of text is what a user says
  int64_t max_new = 16;
  std::string force;  // "5,6,7"
  Sampling sampling;
  int32_t samples = 1;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::string device = "cpu";
  std::string graph;  // "on" "off"; empty: as the device can
  std::string ops;    // path of a user's library of ops; empty: none
  std::string dtype = "auto";
  int64_t page_size = 16;
  int64_t pages = 0;  // 0: as many as the requests need together
  uint64_t page_order = 0;
  int64_t chunk = 0;
  int64_t max_batch = 0;
  int64_t budget = 0;
  bool prefix_cache = false;
  std::string preempt = "recompute";
  uint64_t schedule = 0;
  int threads = 0;

  bool asks_for_nothing() const { return prompts.empty() && tokens.empty() && requests.empty(); }
};
void add_model_folder(CLI::App& app, std::string& model);  // --model alone
void add_model_options(CLI::App& app, ModelOptions& options);
void add_logprobs_option(CLI::App& app, ModelOptions& options);

// The dtype of a run: the one asked for, or the checkpoint's own.
DType dtype_of(const ModelOptions& options, const ModelConfig& config);
EngineOptions engine_options_of(const ModelOptions& options, const ModelConfig& config);

// Of everything that observes.
struct ObserveOptions {
  std::string keep = "flagged";
  std::string points, layers, positions;
  std::string trace;          // path; empty: nothing is kept
  std::string record_before;  // globs; empty: no op's inputs
};
void add_observe_options(CLI::App& app, ObserveOptions& options);
void add_selection_options(CLI::App& app, ObserveOptions& options);  // --points and the like alone
Selection selection_of(const ObserveOptions& options);

// --limits: a file of Limits; "" for theory alone.
void add_limits_option(CLI::App& app, std::string& limits);
Limits limits_of(const std::string& path);

// --schema: one for every point, instead of what the trace or the engine declares; "" for that.
void add_schema_option(CLI::App& app, std::string& schema);
std::optional<std::map<std::string, RoundingContract>> contracts_of(const std::string& schema);

// --accumulator: instead of what the trace or the engine declares; "" for that.
void add_accumulator_option(CLI::App& app, std::string& accumulator);
std::optional<std::string> accumulator_of(const std::string& accumulator);

// --fault, repeatable: texts for parse_fault.
void add_fault_option(CLI::App& app, std::vector<std::string>& faults);

// Of everything that prints a result.
struct ReportOptions {
  std::string format = "table";
  std::string json;  // path of a file for the result as JSON, beside what is printed
};
void add_format_option(CLI::App& app, std::string& format);
void add_report_options(CLI::App& app, ReportOptions& options);

}  // namespace lockstep
