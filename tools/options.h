// Options that mean the same in every command that has them. They are spelt once, here: the first
// long name is the one that help and errors have, others are taken too.
#pragma once

#include <string>
#include <vector>

#include "src/replay/replay.h"
#include "src/report/output.h"
#include "src/session/options.h"
#include "tools/parse.h"

namespace CLI {
class Option;
}  // namespace CLI

namespace lockstep {

// An option whose value is one of `choices`; `value` is what it is bound to, and its default.
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                        std::vector<std::string> choices, const std::string& help);
void add_threads_option(CLI::App& app, int& threads);        // --threads
void add_device_option(CLI::App& app, std::string& device);  // --device, a text for open_device
void add_ops_option(CLI::App& app, std::string& ops);        // --ops
// --point, --layer, --requests and --positions, of one op on what a trace kept.
void add_place_options(CLI::App& app, ReplayOptions& options);

// --model alone.
void add_model_folder(CLI::App& app, std::string& model, bool required = true);
void add_model_options(CLI::App& app, ModelOptions& options);
void add_logprobs_option(CLI::App& app, ModelOptions& options);

void add_observe_options(CLI::App& app, ObserveOptions& options);
// --points, --layers and --positions alone, each bound to a text for Selection.
void add_selection_options(CLI::App& app, ObserveOptions& options);
void add_selection_options(CLI::App& app, std::string& points, std::string& layers,
                           std::string& positions);

// --limits: a file of Limits; "" for theory alone.
void add_limits_option(CLI::App& app, std::string& limits);

// --schema and --rounding: instead of what the trace or the engine declares.
void add_rounding_options(CLI::App& app, RoundingOptions& options);

// --accumulator: instead of what the trace or the engine declares; "" for that.
void add_accumulator_option(CLI::App& app, std::string& accumulator);

// --rope-pairs: instead of what the trace says; "" for that.
void add_rope_pairs_option(CLI::App& app, std::string& pairs);

// --fail-fast and --error-budget, see JudgeOptions, and --judge-rows, a text for rows_to_judge.
void add_judging_options(CLI::App& app, bool& fail_fast, bool& error_budget, std::string& rows);

// --determinism: how often the same is served; 0: not asked for.
CLI::Option* add_determinism_option(CLI::App& app, int64_t& repeats);

// --fault, repeatable: texts for parse_fault.
void add_fault_option(CLI::App& app, std::vector<std::string>& faults);

// How the result is printed and written, and --explain for the words in it.
void add_format_option(CLI::App& app, std::string& format);
void add_report_options(CLI::App& app, ReportOptions& options);
// The same of a judgement, which has tests for --junit.
void add_result_options(CLI::App& app, ReportOptions& options);

}  // namespace lockstep
