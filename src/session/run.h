// The work of `lockstep run`, whatever it is asked to do with the engine.
#pragma once

#include <string>
#include <vector>

#include "src/judge/determinism.h"
#include "src/judge/verdict.h"
#include "src/report/output.h"
#include "src/session/options.h"

namespace lockstep {

struct RunOptions {
  ModelOptions model;
  ObserveOptions observe;
  ReportOptions report;
  std::vector<std::string> faults;
  std::string limits, accumulator;
  RoundingOptions rounding;
  bool no_audit = false, confirm = false, fail_fast = false, error_budget = false;
  std::string judge_rows;          // a text for rows_to_judge
  double judge_memory = 0;         // GB of a CUDA device; 0: all that is free
  std::string modes;               // empty: beside the reference
  int64_t determinism = 0;         // how often the same is served; 0: it is not asked for
  int64_t ranks = 1;               // that share the model, a process each
  bool sequence_parallel = false;  // they share the residual stream by rows, too
  double rank_patience = 20;       // seconds that one may get no further while others wait for it
  int64_t rank = -1;       // of this process, where others start the others; -1: it starts all
  std::string rendezvous;  // "HOST:PORT", where they meet then
};

class RankSeat;
struct ModesRun;
struct Session;

// Serves what the options ask for, beside the reference or in several modes. Throws Error where the
// options do not fit each other or the run cannot go on. seat: rank 0's, of a model over ranks.
Result run(const RunOptions& options, const std::vector<std::string>& command_line,
           RankSeat* seat = nullptr);

// The modes that they ask for, without ranks.
ModesRun modes_run(const RunOptions& options, const Session& session);

// Serves each request in many ways and compares the bits. Throws Error as run() does.
Determinism run_determinism(const RunOptions& options,
                            const std::vector<std::string>& command_line);

}  // namespace lockstep
