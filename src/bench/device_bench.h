// Figures of the engine on a CUDA device.
#pragma once

#include <functional>
#include <vector>

#include "src/bench/device_roofs.h"
#include "src/bench/figures.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// How fast an engine serves one shape on the CUDA device of the roofs: prompts, and decode
// passes of one request and of many, op by op and as graphs, and the attention of one layer over
// long contexts; decode passes and attention as shares of the read roof, which is sampled right
// before and after attention and graphs. A pass is timed on the host, from its plan to the tokens
// it chose. Throws Error when graphs choose other tokens than ops do.
std::vector<Figure> measure_device(const std::string& shape, const Checkpoint& checkpoint,
                                   DeviceRoofs& roofs,
                                   const std::function<void(const char*)>& progress);

}  // namespace lockstep
