#pragma once

#include "tests/fixtures.h"
#include "tools/judged_run.h"
#include "tools/reference_library.h"

namespace lockstep {

// A judged run on as many pages as its requests need.
inline Result judged(JudgedRun run) {
  run.engine.pages = pages_for(run.requests, run.engine.page_size);
  return judge_run(run);
}

}  // namespace lockstep
