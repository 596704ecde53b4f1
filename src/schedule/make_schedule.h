#pragma once

#include <cstdint>

#include "src/schedule/schedule.h"
#include "src/weights/config.h"

namespace lockstep {

// How a step is cut. All are at least 1.
struct ScheduleOptions {
  int queues = 1;
  int64_t kv_shares = 1;    // of the pages of each KV head
  int64_t down_shares = 1;  // of the sum of mlp.down
};

// The sizes of a model as a schedule has them.
ScheduledModel scheduled_model(const ModelConfig& config);

// A decode step for so many queues. Each op is cut into as many blocks as there are queues, whole
// heads or multiples of 16 rows, and dealt out round robin, layer by layer; an instruction waits
// for exactly those whose results it reads or whose memory it takes. Throws Error on options that
// are not positive, or more than a list may have.
Schedule make_schedule(const ScheduledModel& model, const ScheduleOptions& options);

}  // namespace lockstep
