#pragma once

#include "tests/device.h"
#include "tests/fixtures.h"
#include "tools/judged_run.h"
#include "tools/reference_library.h"

namespace lockstep {

// A judged run on as many pages as its requests need, with the engine on the device of the tests.
inline Result judged(JudgedRun run) {
  run.engine.device = TestDevice::device();
  run.engine.pages = pages_for(run.requests, run.engine.page_size);
  return judge_run(run);
}

}  // namespace lockstep
