// The ops of a user's library, each alone, over a grid of shapes: no model and no trace is needed.
// A case is a model of one layer with random weights, of which one op is computed, on inputs that
// are known, and judged as a node of a run is: exact result, budget, statistics.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/opcheck/op_trial.h"
#include "src/report/document.h"

namespace lockstep {

struct OpsOptions {
  std::string library;              // LIB.so or FILE.py
  std::vector<std::string> only;    // names of ops; empty: all that it has
  std::vector<std::string> dtypes;  // "fp32" "bf16" "fp16"; empty: all three
  std::string device = "cpu";
  int threads = 0;
  RoundingOptions rounding;
  std::string folder;  // where repros go, each in a folder of its op; "": none are written
};

struct OpsResult {
  // The cases of one op. Times are in seconds, for all passes of a case.
  struct Account {
    std::string op;
    int64_t cases = 0, wrong = 0;  // that it computed
    int64_t refused = 0;           // that it said by a sentence not to compute
    std::string refusal;           // the first of these sentences; or why no case was tried
    double budgets = 0;      // the most that an element of a right case is off, or of a wrong one
    std::string worst_case;  // whose that is
    std::optional<OpTrial::Failure> first;  // the smallest wrong case
    std::string common;                     // what the wrong cases have in common and no other has
    // Medians over the cases of usual shapes; none: none of them was right.
    std::optional<double> seconds, own_seconds, ratio;
    std::string folder;     // of its repro; "": none
    std::string no_folder;  // why not, where one was asked for
  };

  std::string library, device;
  std::vector<std::string> dtypes;
  std::vector<Account> ops;
  double seconds = 0;  // of all
};

// Throws Error where the library cannot be opened, has no op or none of `only`, and where a case
// could not be judged. Cases run one after another, each in a table of ops of its own, and the same
// numbers are drawn in every run, so that two runs can be compared.
OpsResult check_ops(const OpsOptions& options, Detail detail = Detail::screen);

// 0: all are right, 1: some are wrong, 2: one computed no case, and none is wrong.
int exit_status(const OpsResult& result);

// schema: tools/schemas/ops.schema.json
Document document_of(const OpsResult& result);

}  // namespace lockstep
