// The options of a command, whichever front end asked: read here into what the engine, the
// judge and the trace take. The command line's own reading of them is tools/options.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "probes/selection.h"
#include "src/engine/engine.h"
#include "src/judge/judge.h"
#include "src/judge/limits.h"
#include "src/report/output.h"
#include "traces/trace.h"

namespace lockstep {

// How passes are computed as a schedule's instructions (src/schedule).
struct InstructionOptions {
  std::string executor;    // "instructions", "persistent"; empty: by the model's own executors
  int queues = 0;          // of a schedule that is made; 0: some
  std::string step;        // path of a schedule; empty: one is made
  std::string interleave;  // a seed, or "adversarial"; empty: queues are threads
  std::string timeline;    // path of what the last step did when; empty: not asked for
};

// The options of everything that runs a model. Texts are as they were typed, and checked where they
// are used; open_session() makes of them what an engine takes.
struct ModelOptions {
  std::string model;  // folder of the checkpoint
  std::vector<std::string> prompts;
  std::vector<std::string> tokens;  // "1,2,3", one request each
  std::string requests;             // path of a JSONL file
  bool chat = false;                // a prompt of text is what a user says
  int64_t max_new = 16;
  std::string force;       // "5,6,7"
  std::string force_from;  // path of a trace or a result, whose tokens are forced; empty: none
  Sampling sampling;
  int32_t samples = 1;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::string device = "cpu";
  std::string graph;  // "on" "off"; empty: as the device can
  std::string ops;    // path of a user's library of ops; empty: none
  std::string dtype = "auto";
  InstructionOptions instructions;
  // The options of serving as they were asked for; pages: 0 for as many as the requests need. Its
  // device, graph and dtype are not yet decided.
  EngineOptions engine;

  bool asks_for_nothing() const { return prompts.empty() && tokens.empty() && requests.empty(); }
  // The dtype of a run: the one asked for, or the checkpoint's own.
  DType dtype_for(const ModelConfig& config) const;
  // `engine`, decided.
  EngineOptions engine_for(const ModelConfig& config) const;
};

// The files that are read because of these options: nothing that a command writes may take their
// place (check_output).
std::vector<NamedFile> files_read_by(const ModelOptions& options);
// Those, the command's other files and --timeline, which must be none of them: throws Error as
// check_output() does.
std::vector<NamedFile> checked_files(const ModelOptions& options,
                                     const std::vector<NamedFile>& others);

// The options of everything that observes.
struct ObserveOptions {
  std::string keep = "flagged";
  std::string points, layers, positions;
  std::string trace;          // path; empty: nothing is kept
  std::string record_before;  // globs; empty: no op's inputs

  Selection selection() const;  // of points, layers and positions
};

// "64", or "64:7" with a seed; "": all rows. Throws Error on another text, and where what else was
// asked for (--confirm, say; "": nothing) needs all rows.
RowsToJudge rows_to_judge(const std::string& text, const std::string& needs_all);

// A file of Limits; "" for theory alone.
Limits limits_of(const std::string& path);

// Where ops round inside, instead of what the trace or the engine declares.
struct RoundingOptions {
  std::string schema;                 // an engine of presets(), or "auto"; "": what is declared
  std::vector<std::string> rounding;  // POINT=CONTRACT, over that

  bool asks_for_nothing() const { return schema.empty() && rounding.empty(); }
};
// Into what the judge takes; what it held before stands where nothing else is asked for. Throws
// Error as rounding_from() does.
void ask_for(const RoundingOptions& options, JudgeOptions& judge);

// A contract for every point, as an engine has it; "": nothing, "auto": none is declared.
std::optional<std::map<std::string, RoundingContract>> contracts_of(const std::string& schema);

// How linear ops sum, instead of what the trace or the engine declares; "" for that.
std::optional<std::string> accumulator_of(const std::string& accumulator);

}  // namespace lockstep
