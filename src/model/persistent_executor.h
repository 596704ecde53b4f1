#pragma once

#include <memory>

#include "src/model/layer_executor.h"
#include "src/model/timeline.h"

namespace lockstep {

// Makes executors that compute a pass in which each request adds one token in one launch
// (kernels/decode_step.h), and other passes as the model's own do. They show all points once the
// launch is queued, with bits of their own: sums are in another order. Throws Error unless the
// model is one that the launch is built for; an executor throws where a probe would change what it
// is shown. The makers own the memory of the steps, which lasts as long as the last copy of them:
// workspaces, and for a model whose steps can use them its weights once more, packed
// (decode_step_packed); a model is told by its address. With a timeline the launch keeps when each
// multiprocessor did what, and graphs of it too.
MakeExecutor persistent_executors(const ModelConfig& config, DType dtype, const Ops& ops,
                                  std::shared_ptr<Timeline> timeline = {});

}  // namespace lockstep
