// A wrong op of a trace as a folder that shows it alone.
#pragma once

#include <string>
#include <vector>

#include "src/replay/replay.h"
#include "src/session/judged_trace.h"

namespace lockstep {

struct ReproOptions {
  ReplayOptions of;     // without a point: the trace's first finding
  std::string folder;   // where it goes
  std::string op = "";  // of the user's library, by its name there; "": that which a run calls
};

struct ReproResult {
  std::string source, folder;
  Place place;
  std::string by;  // who computed it wrong: "the trace", or the user's library
  int32_t pass = 0;
  int64_t rows = 0, of_rows = 0, keys = 0, of_keys = 0;  // of the case; keys: of attention
  int64_t wrong = 0, elements = 0;                       // that the folder compares
  int64_t bytes = 0;                                     // of the folder
  TrialResult::Element worst;
  std::vector<std::string> steps;  // how it was reduced
  std::string unlike_run;          // as OpRunner::unlike_run(), of the case
  bool own_is_right = false;       // Lockstep's own op, on the case
};

// Throws Error where nothing is wrong, or nothing that single elements show.
ReproResult make_repro(const ReproOptions& options, Detail detail = Detail::screen);
// The same of a trace that is open, with a point: its path is a title.
ReproResult make_repro(const ReproOptions& options, const Checkpoint& checkpoint,
                       OpenedTrace opened, Detail detail = Detail::screen);

// schema: tools/schemas/repro.schema.json
Document document_of(const ReproResult& result);

// A number for people, with so many digits; NaN has no sign.
std::string shown(double x, int digits);

}  // namespace lockstep
