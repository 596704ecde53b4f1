#pragma once

#include "src/session/judged_run.h"
#include "src/session/reference_library.h"
#include "tests/device.h"
#include "tests/fixtures.h"

namespace lockstep {

// A judged run on as many pages as its requests need, with the engine on the device of the tests.
inline Result judged(JudgedRun run) {
  run.engine.device = TestDevice::device();
  run.engine.pages = pages_for(run.requests, run.engine.page_size);
  return judge_run(run);
}

}  // namespace lockstep
