#pragma once

#include "src/model/layer_executor.h"

namespace lockstep {

// Makes executors that compute a pass in which each request adds one token in one launch
// (kernels/decode_step.h), and other passes as the model's own do. They show all points once the
// launch is queued, with bits of their own: sums are in another order. Throws Error unless the
// model is one that the launch is built for; an executor throws where a probe would change what it
// is shown.
MakeExecutor persistent_executors(const ModelConfig& config, DType dtype, const Ops& ops);

}  // namespace lockstep
