// One op again, on what a trace kept for it: as the trace has it, by this library's kernel, and by
// a user's, each held to the exact result.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/replay/op_runner.h"
#include "src/replay/trial.h"
#include "src/report/document.h"
#include "src/session/options.h"

namespace lockstep {

struct ReplayOptions {
  std::string trace, model;
  std::string point;
  int layer = -1;                   // -1: of a point that is of no layer
  std::string requests, positions;  // "0,3-5"; "": all
  std::string ops;                  // path of a user's library or Python file; "": none
  std::string device = "cpu";
  int threads = 0;
  RoundingOptions rounding;  // of the user's op, or without one of the trace's
  std::string rope_pairs;    // as in rope_pairs.h
};

// The files that are read because of these options, as files_read_by(ModelOptions) has them.
std::vector<NamedFile> files_read_by(const ReplayOptions& options);

// One op on the same inputs by several hands.
struct ReplayResult {
  std::string source;  // the trace
  Place place;
  DType dtype = DType::bf16;
  std::string device, model;
  int64_t passes = 0, of_passes = 0;  // that could be computed again, of those with rows asked for
  int64_t rows = 0;
  std::string lacking;              // why others could not be
  std::string unlike_run;           // as OpRunner::unlike_run(), of the first pass that is so
  std::vector<std::string> unread;  // arrays of a bundle that nothing was read from
  std::vector<TrialResult> trials;  // of the trace, of this library, of the user
};

// Throws Error where an option names what the trace or its model does not have, and where nothing
// that the op reads was kept.
ReplayResult replay(const ReplayOptions& options, Detail detail = Detail::screen);

// 0: nobody computed it wrongly; 1: somebody did; 2: nobody can tell.
int exit_status(const ReplayResult& result);

std::string story_of(const ReplayResult& result);  // one sentence
// schema: tools/schemas/replay.schema.json
Document document_of(const ReplayResult& result);
std::string report_json(const ReplayResult& result);

}  // namespace lockstep
